// The arithmetic of lynxq/quantizer.py and lynxq/dtypes.py, operation for operation.
//
// Every float32 operation is an intrinsic that rounds to nearest even and is never contracted.
#pragma once
#include "plan.cuh"

#define FLOAT32 0
#define FLOAT16 1
#define BFLOAT16 2
#define VALUE_BYTES (VALUE_TYPE == FLOAT32 ? 4 : 2)
#define ARRAY_BYTES (ARRAY_TYPE == FLOAT32 ? 4 : 2)

#define MIN_SIGMA 0x1p-126f
#define MIN_STEP 0x1p-125f
#define LARGE 0x1p126f
#define MAX_FLOAT 0x1.fffffep127f
#define BF16_LARGEST 0x1.fep127f
#define STEPS (METADATA == 2 ? 32767.0f : 127.0f)
#define MOST_UNITS (METADATA == 2 ? 65535.0f : 255.0f)

// --- conversions. In PTX, so that no CUDA header is needed where kernels are compiled at run time. ------------
#ifdef __CUDA_HOST_SHIM__
__device__ __forceinline__ float half_to_float(u32 h) { return __half2float(__ushort_as_half((u16)h)); }
__device__ __forceinline__ u32 float_to_half(float f) { return __half_as_ushort(__float2half_rn(f)); }
__device__ __forceinline__ u32 floats_to_halves(float low, float high) { return float_to_half(low) | float_to_half(high) << 16; }
__device__ __forceinline__ u32 floats_to_bfloats(float low, float high) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(low)) | (u32)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16;
}
#else
__device__ __forceinline__ float half_to_float(u32 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((u16)h));
    return f;
}
__device__ __forceinline__ u32 float_to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
__device__ __forceinline__ u32 floats_to_halves(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ u32 floats_to_bfloats(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
#endif

// The lesser or the greater of each half of two pairs of 16-bit elements; -0 is less than +0.
#ifdef __CUDA_HOST_SHIM__
template <bool GREATER>
__device__ __forceinline__ u32 choose_half(u32 a, u32 b) {
    const float x = VALUE_TYPE == FLOAT16 ? half_to_float(a) : __uint_as_float(a << 16);
    const float y = VALUE_TYPE == FLOAT16 ? half_to_float(b) : __uint_as_float(b << 16);
    return __float_as_uint(GREATER ? fmaxf(x, y) : fminf(x, y)) == __float_as_uint(x) ? a : b;
}
__device__ __forceinline__ u32 pair_of_lesser(u32 a, u32 b) {
    return choose_half<false>(a & 0xffffu, b & 0xffffu) | choose_half<false>(a >> 16, b >> 16) << 16;
}
__device__ __forceinline__ u32 pair_of_greater(u32 a, u32 b) {
    return choose_half<true>(a & 0xffffu, b & 0xffffu) | choose_half<true>(a >> 16, b >> 16) << 16;
}
#else
__device__ __forceinline__ u32 pair_of_lesser(u32 a, u32 b) {
    u32 pair;
    if (VALUE_TYPE == FLOAT16) {
        asm("min.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    } else {
        asm("min.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    }
    return pair;
}
__device__ __forceinline__ u32 pair_of_greater(u32 a, u32 b) {
    u32 pair;
    if (VALUE_TYPE == FLOAT16) {
        asm("max.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    } else {
        asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    }
    return pair;
}
#endif

// Bits of an element to float32, exact.
template <int TYPE>
__device__ __forceinline__ float widen(u32 bits) {
    if (TYPE == FLOAT32) return __uint_as_float(bits);
    if (TYPE == FLOAT16) return half_to_float(bits);
    return __uint_as_float(bits << 16);
}

// A value of a range that is known to fit the element type of the tensor.
__device__ __forceinline__ u32 narrow_range(float value) {
    if (VALUE_TYPE == FLOAT32) return __float_as_uint(value);
    if (VALUE_TYPE == FLOAT16) return float_to_half(value);
    return __float_as_uint(value) >> 16;
}

// Keeps a decoded value within what the array's type can hold.
__device__ __forceinline__ float saturate(float value) {
    if (ARRAY_TYPE == VALUE_TYPE || ARRAY_TYPE == FLOAT32) return value;
    const float largest = ARRAY_TYPE == FLOAT16 ? 65504.0f : BF16_LARGEST;
    return fminf(fmaxf(value, -largest), largest);
}

// --- centre and scale of a chunk ------------------------------------------------------------------------------
struct Scale {
    float mu, sigma;
};

// Never -0, so that no comparison meets two zeros of different sign.
__device__ __forceinline__ float middle(float lo, float hi) {
    return __fadd_rn(__fadd_rn(__fmul_rn(lo, 0.5f), __fmul_rn(hi, 0.5f)), 0.0f);
}

__device__ __forceinline__ float half_range(float lo, float hi) { return __fsub_rn(__fmul_rn(hi, 0.5f), __fmul_rn(lo, 0.5f)); }

__device__ __forceinline__ float deviation(float lo, float hi, float mu) { return fmaxf(__fsub_rn(hi, mu), __fsub_rn(mu, lo)); }

__device__ __forceinline__ float float_sigma(float dev) { return dev > 0.0f ? fmaxf(dev, MIN_SIGMA) : 0.0f; }

__device__ __forceinline__ float step_of(float lo, float hi) { return fmaxf(__fdiv_rn(half_range(lo, hi), STEPS), MIN_STEP); }

__device__ __forceinline__ float unit_of(float step) { return MEAN_CENTER ? step : __fmul_rn(step, 0.5f); }

// μ̂ of whole steps; at the end of a range it can round to more than the largest float32, which it then is.
__device__ __forceinline__ float center_of(float middle, float mu, float step) {
    return fminf(fmaxf(__fadd_rn(middle, __fmul_rn(mu, step)), -MAX_FLOAT), MAX_FLOAT);
}

// Centre and scale as the decoder sees them, from the range of the run and what is stored of them (METADATA 0: nothing).
__device__ __forceinline__ Scale stored_scale(float lo, float hi, float mu, float sigma) {
    Scale scale;
    if (METADATA == 0) {
        scale.mu = middle(lo, hi);
        scale.sigma = float_sigma(deviation(lo, hi, scale.mu));
    } else if (METADATA == 4) {
        scale.mu = mu;
        scale.sigma = sigma;
    } else {
        const float step = step_of(lo, hi);
        scale.mu = center_of(middle(lo, hi), mu, step);
        scale.sigma = fminf(__fmul_rn(sigma, unit_of(step)), MAX_FLOAT);
    }
    return scale;
}

// What is stored of a chunk: whole numbers as floats, or the floats themselves. `mean` counts with MEAN_CENTER only.
__device__ __forceinline__ Scale quantize_scale(float run_lo, float run_hi, float lo, float hi, float mean) {
    Scale stored;
    float mu = middle(lo, hi);
    if (MEAN_CENTER && !(half_range(run_lo, run_hi) > LARGE)) mu = fminf(fmaxf(__fadd_rn(mean, 0.0f), lo), hi);
    if (METADATA == 4) {
        stored.mu = mu;
        stored.sigma = float_sigma(deviation(lo, hi, mu));
        return stored;
    }
    const float center = middle(run_lo, run_hi), step = step_of(run_lo, run_hi), unit = unit_of(step);
    stored.mu = fminf(fmaxf(rintf(__fdiv_rn(__fsub_rn(mu, center), step)), -STEPS), STEPS);
    const float dev = deviation(lo, hi, center_of(center, stored.mu, step));
    float sigma = ceilf(__fdiv_rn(dev, unit));
    if (__fmul_rn(sigma, unit) < dev) sigma = __fadd_rn(sigma, 1.0f);
    stored.sigma = fminf(sigma, MOST_UNITS);
    return stored;
}

__device__ __forceinline__ float reciprocal(float sigma) { return sigma > 0.0f ? __fdiv_rn(1.0f, sigma) : 0.0f; }

// μ̂ + factor · σ̂, kept within the range of the run.
__device__ __forceinline__ float reconstruct(float factor, const Scale& scale, float lo, float hi) {
    const float value = __fadd_rn(scale.mu, __fmul_rn(factor, scale.sigma));
    return fminf(fmaxf(value, lo), hi);
}
