"""Draws of independent Gaussians on a CPU, in one compiled loop each way.

The general way lays means and scales side by side, and goes over all weights about ten times forth
and back for the draws and once more as often for the KL. Here every number is read once on the way
forth, which also gives the sums that a KL to Gaussian priors is made of, and once on the way back.
"""

import ctypes
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bbh.compiled import compiled, divided, is_traced
from bbh.normal_numbers import standard_normal
from bbh.samples import Params, Shapes, size

# Weights that are worth compiling a loop for, and those that are worth a thread of their own.
_FEWEST = 2**15
_WEIGHTS_PER_PART = 2**14

_CODE = """
#include <algorithm>
#include <cstdint>
#include <cstring>

static inline float power_of_two(int32_t exponent) {
    const int32_t bits = (exponent + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return power;
}

// The exponential function of the Cephes library, which compilers turn into vectors: the nearest
// power of two, and a polynomial of what is left.
static inline float exponential(float given) {
    float x = given > -104.0f ? given : -104.0f;
    x = x < 89.0f ? x : 89.0f;
    const float scaled = x * 1.44269504f;
    const int32_t exponent = (int32_t)(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
    x = x - exponent * 0.693359375f;
    x = x - exponent * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * x + 1.3981999507e-3f;
    p = p * x + 8.3334519073e-3f;
    p = p * x + 4.1665795894e-2f;
    p = p * x + 1.6666665459e-1f;
    p = p * x + 5.0000001201e-1f;
    // In two steps, since the largest and smallest powers of two are no numbers.
    const int32_t half = exponent / 2;
    const float power = (p * x * x + x + 1.0f) * power_of_two(half) * power_of_two(exponent - half);
    // given - given is NaN if the argument is NaN or infinite, else zero.
    return power + (given - given);
}

// What belongs to tensor t in a part of all weights side by side.
struct Stretch { int64_t from, to; };
static inline Stretch stretch(const int64_t* starts, int64_t t, Part part) {
    return {std::max(starts[t], part.first) - starts[t],
            std::min(starts[t + 1], part.last) - starts[t]};
}

// draws = loc + scale * noise; sums of loc^2 + scale^2 and of log scale for every tensor.
static void draw_part(const float* const* locs, const float* const* log_scales,
                      const int64_t* starts, int64_t tensors, int64_t samples,
                      const float* __restrict__ noises, float* __restrict__ all_draws,
                      float* __restrict__ all_locs, float* __restrict__ all_scales,
                      double* sums, Part part) {
    const int64_t weights = starts[tensors];
    for (int64_t t = 0; t < tensors; t++) {
        const Stretch p = stretch(starts, t, part);
        const int64_t start = starts[t], number = starts[t + 1] - start;
        const float* __restrict__ loc = locs[t];
        const float* __restrict__ log_scale = log_scales[t];
        float* __restrict__ copy = all_locs + start;
        float* __restrict__ scale = all_scales + start;
        const float* __restrict__ noise = noises + start;
        float* __restrict__ draws = all_draws + start * samples;
        double squares = 0, logarithms = 0;
        for (int64_t begin = p.from; begin < p.to; begin += 1024) {
            // Few enough for sums in single precision, which are faster.
            const int64_t end = std::min(begin + 1024, p.to);
            float some_squares = 0, some_logarithms = 0;
            #pragma omp simd reduction(+ : some_squares, some_logarithms)
            for (int64_t i = begin; i < end; i++) {
                const float m = loc[i], l = log_scale[i], s = exponential(l);
                copy[i] = m;
                scale[i] = s;
                draws[i] = m + s * noise[i];
                some_squares += m * m + s * s;
                some_logarithms += l;
            }
            squares += some_squares;
            logarithms += some_logarithms;
        }
        for (int64_t n = 1; n < samples; n++)
            for (int64_t i = p.from; i < p.to; i++)
                draws[n * number + i] = loc[i] + scale[i] * noise[n * weights + i];
        sums[2 * t] = squares;
        sums[2 * t + 1] = logarithms;
    }
}

extern "C" void draw(const float* const* locs, const float* const* log_scales,
                     const int64_t* starts, int64_t tensors, int64_t samples,
                     const float* noises, float* all_draws, float* all_locs, float* all_scales,
                     double* sums, int64_t weights, int64_t parts, int64_t threads) {
    in_parts(weights, parts, threads, [=](Part part) {
        draw_part(locs, log_scales, starts, tensors, samples, noises, all_draws, all_locs,
                  all_scales, sums + part.number * 2 * tensors, part);
    });
}

// Gradients of loc and log scale, from those of the draws (0 where there are none) and of the sums.
static void back_part(const float* const* gradients, const int64_t* starts, int64_t tensors,
                      int64_t samples, const float* __restrict__ noises,
                      const float* __restrict__ all_locs, const float* __restrict__ all_scales,
                      const float* by_sums, float* __restrict__ by_all_locs,
                      float* __restrict__ by_all_log_scales, Part part) {
    const int64_t weights = starts[tensors];
    for (int64_t t = 0; t < tensors; t++) {
        const Stretch p = stretch(starts, t, part);
        const int64_t start = starts[t], number = starts[t + 1] - start;
        const float* __restrict__ gradient = gradients[t];
        const float* __restrict__ loc = all_locs + start;
        const float* __restrict__ scale = all_scales + start;
        const float* __restrict__ noise = noises + start;
        float* __restrict__ by_loc = by_all_locs + start;
        float* __restrict__ by_log_scale = by_all_log_scales + start;
        const float twice = 2 * by_sums[2 * t], once = by_sums[2 * t + 1];
        if (gradient == nullptr || samples > 1) {
            for (int64_t i = p.from; i < p.to; i++) {
                by_loc[i] = twice * loc[i];
                by_log_scale[i] = twice * scale[i] * scale[i] + once;
            }
            for (int64_t n = 0; gradient != nullptr && n < samples; n++)
                for (int64_t i = p.from; i < p.to; i++) {
                    const float g = gradient[n * number + i];
                    by_loc[i] += g;
                    by_log_scale[i] += g * noise[n * weights + i] * scale[i];
                }
            continue;
        }
        for (int64_t i = p.from; i < p.to; i++) {
            const float g = gradient[i], s = scale[i];
            by_loc[i] = g + twice * loc[i];
            by_log_scale[i] = (g * noise[i] + twice * s) * s + once;
        }
    }
}

extern "C" void back(const float* const* gradients, const int64_t* starts, int64_t tensors,
                     int64_t samples, const float* noises, const float* all_locs,
                     const float* all_scales, const float* by_sums, float* by_all_locs,
                     float* by_all_log_scales, int64_t weights, int64_t parts, int64_t threads) {
    in_parts(weights, parts, threads, [=](Part part) {
        back_part(gradients, starts, tensors, samples, noises, all_locs, all_scales, by_sums,
                  by_all_locs, by_all_log_scales, part);
    });
}
"""


class NormalDraws(NamedTuple):
    """What the loop gives.

    Attributes:
        draws: Draws by name, ``{name: [S, *shape]}``.
        loc: All means in one vector.
        scale: All standard deviations in one vector.
        sums: For every tensor Σ (loc² + scale²) and Σ log scale.
    """

    draws: Params
    loc: Float[Tensor, " D"]
    scale: Float[Tensor, " D"]
    sums: Float[Tensor, "T 2"]


def draw_in_one_loop(
    locs: Mapping[str, Tensor],
    log_scales: Mapping[str, Tensor],
    shapes: Shapes,
    num_samples: int,
) -> NormalDraws | None:
    """loc + exp(log_scale)·ε with ε ~ N(0, I), and what a KL needs; None if there is no loop.

    There is one for many weights in single precision on a CPU with a C++ compiler.

    Args:
        locs: The means of all tensors.
        log_scales: Logarithms of their standard deviations.
        shapes: The shapes of the tensors, in the order in which they lie side by side.
        num_samples: The number of draws.
    """
    parameters = [*(locs[name] for name in shapes), *(log_scales[name] for name in shapes)]
    if num_samples < 1 or size(shapes) < _FEWEST or not all(map(_suitable, parameters)):
        return None
    loops = None if is_traced() else _loops()
    if loops is None:
        return None
    noise = standard_normal(num_samples, size(shapes), parameters[0])
    made = cast(Any, _Draw.apply(loops, tuple(shapes.values()), noise, *parameters))
    loc, scale, sums, *draws = made
    return NormalDraws(dict(zip(shapes, draws, strict=True)), loc, scale, sums)


def _suitable(value: Tensor) -> bool:
    # Not subclasses, such as tensors that are divided among processes.
    plain = type(value) in (Tensor, nn.Parameter)
    on_cpu = plain and value.device.type == "cpu" and value.dtype == torch.float32
    return on_cpu and value.is_contiguous()


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, loops: Any, shapes: tuple[torch.Size, ...], noise: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        num_samples, width = noise.shape
        layout = _layout(shapes)
        tensors = len(shapes)
        loc, scale = noise.new_empty(width), noise.new_empty(width)
        drawn = noise.new_empty(num_samples * width)
        places = _places(parameters)
        log_scales = ctypes.byref(places, tensors * ctypes.sizeof(ctypes.c_void_p))
        rest = [one.data_ptr() for one in (noise, drawn, loc, scale)]
        division = divided(width, _WEIGHTS_PER_PART)
        sums = torch.empty(division.parts, tensors, 2, dtype=torch.float64)
        settings = (layout.starts, tensors, num_samples)
        loops.draw(places, log_scales, *settings, *rest, sums.data_ptr(), *division)
        sums = sums.sum(0).float()
        pieces = drawn.split([num_samples * number for number in layout.sizes])
        draws = [
            piece.view(num_samples, *shape) for piece, shape in zip(pieces, shapes, strict=True)
        ]
        ctx.save_for_backward(noise, loc, scale, *parameters)
        ctx.loops, ctx.shapes, ctx.layout = loops, shapes, layout
        ctx.set_materialize_grads(False)
        return loc, scale, sums, *draws

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        # With gradients enabled, somebody will ask for second derivatives.
        slopes = _slopes_of_slopes if torch.is_grad_enabled() else _slopes
        pieces = (one.split(ctx.layout.sizes) for one in slopes(ctx, *gradients))
        parts = [
            piece.view(shape)
            for vector in pieces
            for piece, shape in zip(vector, ctx.shapes, strict=True)
        ]
        return None, None, None, *parts


def _slopes(
    ctx: Any,
    own_loc: Tensor | None,
    own_scale: Tensor | None,
    by_sums: Tensor | None,
    *by_draws: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradients of all means and of the logarithms of all scales, from the loop."""
    noise, loc, scale = ctx.saved_tensors[:3]
    # Kept by name: a contiguous copy must live as long as the loop runs.
    dense = [None if one is None else one.contiguous() for one in by_draws]
    places = _places(dense)
    factors = noise.new_zeros(len(dense), 2) if by_sums is None else by_sums.contiguous()
    by_loc, by_log_scale = torch.empty_like(loc), torch.empty_like(scale)
    rest = [one.data_ptr() for one in (noise, loc, scale, factors, by_loc, by_log_scale)]
    division = divided(len(loc), _WEIGHTS_PER_PART)
    ctx.loops.back(places, ctx.layout.starts, len(dense), len(noise), *rest, *division)
    if own_loc is not None:
        by_loc += own_loc
    if own_scale is not None:
        by_log_scale.addcmul_(own_scale, scale)
    return by_loc, by_log_scale


def _slopes_of_slopes(
    ctx: Any,
    own_loc: Tensor | None,
    own_scale: Tensor | None,
    by_sums: Tensor | None,
    *by_draws: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The same by operations of torch, which can be differentiated once more."""
    noise, _, _, *parameters = ctx.saved_tensors
    sizes, number = ctx.layout.sizes, len(ctx.layout.sizes)
    loc = torch.cat([one.flatten() for one in parameters[:number]])
    scale = torch.cat([one.flatten() for one in parameters[number:]]).exp()
    rows = [
        noise.new_zeros(len(noise), count) if one is None else one.reshape(len(noise), count)
        for one, count in zip(by_draws, sizes, strict=True)
    ]
    each = torch.cat(rows, dim=1)
    by_loc, by_scale = each.sum(0), (each * noise).sum(0)
    by_log_scale = torch.zeros_like(scale)
    if by_sums is not None:
        squares, logarithms = by_sums.repeat_interleave(torch.tensor(sizes), dim=0).unbind(1)
        by_loc = by_loc + 2 * squares * loc
        by_scale = by_scale + 2 * squares * scale
        by_log_scale = by_log_scale + logarithms
    by_loc = by_loc if own_loc is None else by_loc + own_loc
    by_scale = by_scale if own_scale is None else by_scale + own_scale
    return by_loc, by_log_scale + by_scale * scale


class _Layout(NamedTuple):
    """How tensors lie side by side: the number of weights of each, and where each starts."""

    sizes: list[int]
    starts: Any


@functools.lru_cache(maxsize=16)
def _layout(shapes: tuple[torch.Size, ...]) -> _Layout:
    sizes = [shape.numel() for shape in shapes]
    starts = list(itertools.accumulate(sizes, initial=0))
    return _Layout(sizes, (ctypes.c_int64 * len(starts))(*starts))


def _places(tensors: Sequence[Tensor | None]) -> Any:
    """Addresses of tensors; 0 for those that are missing."""
    addresses = [0 if one is None else one.data_ptr() for one in tensors]
    return (ctypes.c_void_p * len(addresses))(*addresses)


@functools.cache
def _loops() -> Any:
    library = compiled(_CODE, "draws of Gaussians")
    if library is None:
        return None
    place, number = ctypes.c_void_p, ctypes.c_int64
    library.draw.argtypes = [*[place] * 3, *[number] * 2, *[place] * 5, *[number] * 3]
    library.back.argtypes = [*[place] * 2, *[number] * 2, *[place] * 6, *[number] * 3]
    for loop in (library.draw, library.back):
        loop.restype = None
    return library
