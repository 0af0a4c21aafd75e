"""Eight-bit K/V: device functions that turn vectors into float8 e4m3fn codes and a scale, and back.

Called by the kernels that write K/V and by those that read them. All is arithmetic on the bits of
floats, so it needs no fp8 instructions, and the codes equal those of torch's conversion.
"""

import triton
import triton.language as tl


@triton.jit
def e4m3_to_half(code):
    """uint8 codes -> float16 of value / 256, exact; the caller folds 256 into the scale.

    e4m3fn has four bits of exponent biased by 7, float16 five biased by 15: shifted into their
    places, the same bits mean 2**-8 times the value, denormals included.
    """
    wide = code.to(tl.int16)
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    bits = tl.where((wide & 0x7F) == 0x7F, 0x7E00, bits).to(tl.int16)
    return bits.to(tl.float16, bitcast=True)


@triton.jit
def to_e4m3(x):
    """float32 -> uint8 codes, rounded to nearest even; beyond 448 the largest, 0x7F if not finite.

    A code above the sign is 8 * (exponent field) + mantissa, so a carry out of the mantissa is
    right by itself. Beside a power of two 2**20 times as large as x's own, and at least as that of
    2**-6, a float32 keeps what a code does: the addition rounds, and its last bits count steps.
    """
    bits = x.to(tl.int32, bitcast=True)
    magnitude = tl.minimum(bits & 0x7FFFFFFF, 0x43E00000)  # 448
    exponent = tl.maximum(magnitude >> 23, 121)
    power = (exponent + 20) << 23
    total = magnitude.to(tl.float32, bitcast=True) + power.to(tl.float32, bitcast=True)
    steps = total.to(tl.int32, bitcast=True) - power  # 8 to 16 where x has an exponent field
    code = (((exponent - 121) << 3) + steps) | ((bits >> 24) & 0x80)
    return tl.where((bits & 0x7FFFFFFF) >= 0x7F800000, 0x7F, code).to(tl.uint8)


@triton.jit
def quantise_e4m3(x):
    """x [ROWS, D] float32 -> codes of x / scale [ROWS, D] uint8, scale [ROWS] float32.

    A row's scale is the least power of two, from 2**-100, that brings its finite values to at most
    448 = 1.75 * 2**8; 1 for a row of zeros. Dividing by it is exact. Values above 3.29e38 may come
    back infinite.
    """
    magnitude = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.max(tl.where(magnitude < 0x7F800000, magnitude, 0), 1)
    above = ((largest & 0x7FFFFF) > 0x600000).to(tl.int32)
    exponent = tl.maximum((largest >> 23) - 135 + above, -100)
    exponent = tl.where(largest == 0, 0, exponent)
    scale = ((127 + exponent) << 23).to(tl.float32, bitcast=True)
    inverse = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    return to_e4m3(x * inverse[:, None]), scale
