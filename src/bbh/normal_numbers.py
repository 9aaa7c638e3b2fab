"""Many standard normal numbers on a CPU, in a compiled loop that makes them in vectors.

Torch's generator has a single thread and makes one word of random bits after the other, and for a
step of a network with a hundred thousand Gaussian weights that takes as long as half of the
network's matrix products.
"""

import ctypes
import functools
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.compiled import LOGARITHM, compiled, divided, is_traced

# With fewer numbers in a row there is too little to save for compiling a loop.
FEWEST = 2**15
# Numbers that belong together in the loop, and those that are worth a thread of their own.
_BLOCK = 64
_BLOCKS_PER_PART = 2**8

# Counters are enciphered (Philox4x32-10, Salmon et al. 2011, with the constants of its authors), so
# a number depends on the seed and its place and on nothing else. Then comes the transformation of
# Box and Muller. Sine and cosine are those of the Cephes library, as the logarithm is.
_CODE = """
constexpr int LANES = 16;
constexpr float UNIT = 1.0f / 2147483648.0f;

// Two normal numbers from 64 random bits.
static inline void transform(uint32_t a, uint32_t b, float* one, float* other) {
    const float radius = std::sqrt(-2.0f * logarithm(((int32_t)(a >> 1) + 0.5f) * UNIT));
    // The angle is a whole number of quarter turns, and at most half a quarter to either side.
    const float turns = (int32_t)b * (2.0f * UNIT);
    const int32_t quarter = (int32_t)(turns + (turns < 0.0f ? -0.5f : 0.5f));
    const float x = (turns - quarter) * 1.57079633f, z = x * x;
    const float sine = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z
                        - 1.6666654611e-1f) * z * x + x;
    const float cosine = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z
                          + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
    const float up = (quarter & 1) ? cosine : sine, along = (quarter & 1) ? sine : cosine;
    *one = radius * (((quarter + 1) & 2) ? -along : along);
    *other = radius * ((quarter & 2) ? -up : up);
}

static void some_normal(float* __restrict__ numbers, uint64_t seed, Part part) {
    const uint32_t key = seed, other_key = seed >> 32;
    for (int64_t block = part.first; block < part.last; block++) {
        uint32_t a[LANES], b[LANES], c[LANES], d[LANES];
        // Words of 32 bits are kept in 64, so that compilers multiply them in vectors.
        #pragma omp simd
        for (int l = 0; l < LANES; l++) {
            const uint64_t counter = (uint64_t)block * LANES + l;
            uint64_t p = counter & 0xffffffffu, q = counter >> 32, r = 0, t = 0;
            #pragma GCC unroll 10
            for (int round = 0; round < 10; round++) {
                const uint64_t left = p * 0xD2511F53u, right = r * 0xCD9E8D57u;
                p = (right >> 32) ^ q ^ (uint32_t)(key + round * 0x9E3779B9u);
                r = (left >> 32) ^ t ^ (uint32_t)(other_key + round * 0xBB67AE85u);
                q = right & 0xffffffffu;
                t = left & 0xffffffffu;
            }
            a[l] = p; b[l] = q; c[l] = r; d[l] = t;
        }
        float* const place = numbers + block * 4 * LANES;
        #pragma omp simd
        for (int l = 0; l < LANES; l++)
            transform(a[l], b[l], place + l, place + LANES + l);
        #pragma omp simd
        for (int l = 0; l < LANES; l++)
            transform(c[l], d[l], place + 2 * LANES + l, place + 3 * LANES + l);
    }
}

extern "C" void normal(float* numbers, uint64_t seed,
                       int64_t blocks, int64_t parts, int64_t threads) {
    in_parts(blocks, parts, threads, [=](Part part) { some_normal(numbers, seed, part); });
}
"""


def standard_normal(num_samples: int, number: int, like: Tensor) -> Float[Tensor, "S D"]:
    """Draws from N(0, I), one row for each sample, with the device and dtype of ``like``.

    They follow from torch's seed. Rows of many numbers in single precision on a CPU are other ones
    where there is a C++ compiler than where there is none.
    """
    fits = like.device.type == "cpu" and like.dtype == torch.float32 and number >= FEWEST
    loop = _loop() if fits and num_samples > 0 and not is_traced() else None
    if loop is None:
        return torch.randn(num_samples, number, dtype=like.dtype, device=like.device)
    seed = int(torch.randint(2**62, (), device="cpu"))
    blocks = -(-num_samples * number // _BLOCK)
    numbers = like.new_empty(blocks * _BLOCK)
    loop(numbers.data_ptr(), seed, *divided(blocks, _BLOCKS_PER_PART))
    return numbers[: num_samples * number].view(num_samples, number)


@functools.cache
def _loop() -> Any:
    library = compiled(LOGARITHM + _CODE, "random numbers")
    if library is None:
        return None
    library.normal.argtypes = [ctypes.c_void_p, ctypes.c_uint64, *[ctypes.c_int64] * 3]
    library.normal.restype = None
    return library.normal
