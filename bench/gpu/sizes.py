"""What is run: sizes of the model and of all cases, real ones and those of the dry run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """The shapes that count of a decoder, in elements."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    max_position: int

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each product of a layer, and of the head."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.head_dim, self.hidden),
            "output": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
            "head": (self.vocab, self.hidden),
        }

    @property
    def layer_weights(self) -> int:
        """Elements of the products' weights in all layers, without the head."""
        sizes = {name: outputs * inputs for name, (outputs, inputs) in self.products.items()}
        return self.layers * (sum(sizes.values()) - sizes["head"])

    @property
    def weights(self) -> int:
        """Elements that a decode step reads: all but the embedding."""
        return self.layer_weights + self.vocab * self.hidden

    @property
    def token_numbers(self) -> int:
        """K and V of a token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


Case = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Values of a small search for block sizes, every one with every other."""

    chunks: tuple[int, ...]
    block_n: tuple[int, ...]
    stages: tuple[int, ...]
    warps: tuple[int, ...]
    tile_m: tuple[int, ...]
    tile_stages: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Tokens and rows of every case."""

    model: Model
    copy_bytes: int
    square: int  # of the matrix product that tells the peak
    page_sizes: tuple[int, ...]  # the first one is used where there is no choice
    lengths: tuple[int, ...]  # rows that attention is compared with its twin on
    news: tuple[int, ...]  # new tokens of those
    bit_rows: int
    bit_length: int
    bit_shared: int
    bit_new: int
    heights: tuple[int, ...]  # rows of products whose bits are compared
    product_rows: tuple[int, ...]
    decode: tuple[Case, ...]  # rows, tokens of each, tokens that all share
    extend: tuple[Case, ...]  # rows, new tokens, cached tokens
    sweep: Sweep
    shared: int  # cached tokens of the engine's hot prompt
    own: int  # its new ones
    rounds: int
    batches: tuple[Case, ...]  # the engine's decoding: rows, context, tokens that all share
    steps: int  # of each of them
    batch: int  # rows of the ones that are compared between settings
    graph_tokens: int  # most tokens of a step that has a CUDA graph
    max_rows: int


LLAMA_3_8B = Model(
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    inner=14336,
    vocab=128256,
    max_position=16384,
)

REAL = Sizes(
    model=LLAMA_3_8B,
    copy_bytes=4 << 30,
    square=8192,
    page_sizes=(16, 64),
    lengths=(1500, 700, 64, 1, 333),
    news=(1500, 50, 1, 1, 140),
    bit_rows=64,
    bit_length=700,
    bit_shared=512,
    bit_new=50,
    heights=(1, 16, 17, 64, 65, 128, 200),
    product_rows=(1, 16, 64, 256, 2048),
    decode=(
        (64, 8192, 0),
        (64, 8192, 4096),
        (64, 8192, 8192),
        (1, 8192, 0),
        (256, 1024, 512),
        (16, 32768, 16384),
    ),
    extend=((1, 50, 2000), (16, 50, 2000), (64, 50, 2000), (1, 2050, 0), (4, 8192, 0)),
    sweep=Sweep(
        chunks=(256, 512),
        block_n=(32, 64, 128),
        stages=(3, 5, 7),
        warps=(4, 8),
        tile_m=(64, 128),
        tile_stages=(2, 3, 4),
    ),
    shared=2000,
    own=50,
    rounds=9,
    batches=(
        (1, 2048, 0),
        (16, 2048, 0),
        (64, 2048, 0),
        (256, 2048, 0),
        (16, 2048, 1024),
        (64, 2048, 1024),
        (256, 2048, 1024),
        (64, 8192, 4096),
    ),
    steps=40,
    batch=64,
    graph_tokens=256,
    max_rows=256,
)

TOY = Sizes(
    model=Model(
        hidden=32,
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=16,
        inner=48,
        vocab=160,
        max_position=128,
    ),
    copy_bytes=1 << 20,
    square=64,
    page_sizes=(8, 16),
    lengths=(45, 40, 9, 1),
    news=(45, 5, 1, 1),
    bit_rows=4,
    bit_length=42,
    bit_shared=32,
    bit_new=3,
    heights=(1, 20),
    product_rows=(1, 5),
    decode=((2, 40, 0), (3, 40, 32), (2, 32, 32)),
    extend=((1, 5, 35), (1, 12, 0)),
    sweep=Sweep(
        chunks=(32,), block_n=(16, 32), stages=(3,), warps=(4,), tile_m=(32,), tile_stages=(3,)
    ),
    shared=32,
    own=4,
    rounds=1,
    batches=((2, 40, 0), (2, 40, 32)),
    steps=2,
    batch=2,
    graph_tokens=2,
    max_rows=2,
)
