"""What tests of parsing draw from."""

from hypothesis import strategies as st

CUTS = st.lists(st.integers(0, 10_000), max_size=8)  # for `cut_at`
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
_NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | TEXTS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(TEXTS, part, max_size=3),
    max_leaves=8,
)
