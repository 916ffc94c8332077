// What both encoders of a page share: metadata, sink tokens, and the bytes between sections.
#pragma once
#include "codes.cuh"

// Stored centre and scale of one chunk. Integers are kept as they are, float32 as its bits.
__device__ __forceinline__ void store_scale(const Plan& plan, const PageView& view, i64 index, const Scale& stored) {
    const int bytes = METADATA ? METADATA : 1;
    u8* mu = section(plan, view, MU) + index * bytes;
    u8* sigma = section(plan, view, SIGMA) + index * bytes;
    store_bits<bytes>(mu, METADATA == 4 ? __float_as_uint(stored.mu) : (u32)__float2int_rz(stored.mu));
    store_bits<bytes>(sigma, METADATA == 4 ? __float_as_uint(stored.sigma) : __float2uint_rz(stored.sigma));
}

__device__ __forceinline__ float stored_mu(u32 bits) {
    if (METADATA == 4) return __uint_as_float(bits);
    return METADATA == 2 ? (float)(short)bits : (float)(i8)bits;
}

__device__ __forceinline__ float stored_sigma(u32 bits) { return METADATA == 4 ? __uint_as_float(bits) : (float)bits; }

__device__ __forceinline__ void store_range(const Plan& plan, const PageView& view, i64 index, float lo, float hi) {
    store_bits<VALUE_BYTES>(section(plan, view, LO) + index * VALUE_BYTES, narrow_range(lo));
    store_bits<VALUE_BYTES>(section(plan, view, HI) + index * VALUE_BYTES, narrow_range(hi));
}

// Chunks and runs of channels begin anew with every head.
__device__ __forceinline__ i64 ceil_div(i64 value, i64 divisor) { return (value + divisor - 1) / divisor; }

// Threads of one block of a page write the zeros that align sections and pages.
__device__ __forceinline__ void store_gaps(const Plan& plan, const PageView& view, u32 thread, u32 threads) {
    const PageKind& kind = plan.kinds[view.kind];
    for (int which = 0; which < SECTIONS; ++which) {
        u8* page = which < RESIDUAL_LOW ? view.anchor : view.residual;
        for (i64 k = kind.end[which] + thread; k < kind.next[which]; k += threads) page[k] = 0;
    }
}

// Copy a pack of channels of the verbatim tokens, `first`, `first` + `step` and so on.
__device__ __forceinline__ void store_sinks(const Plan& plan, const PageView& view, u8* column, i64 channel, int first, int step) {
    u8* sinks = section(plan, view, SINKS);
    for (int k = first; k < view.sinks; k += step)
        store_pack<VALUE_BYTES>(sinks + ((view.outer * view.sinks + k) * plan.channels + channel) * VALUE_BYTES,
                                load_pack<VALUE_BYTES>(value_address(plan, column, view.page * PAGE + k)));
}

__device__ __forceinline__ int valid_tokens(i64 coded, i64 strip) {
    const i64 left = coded - strip * STRIP;
    return left <= 0 ? 0 : left < STRIP ? (int)left : STRIP;
}

// The strip's values of a pack of channels; tokens from `valid` on repeat the last valid one, so that they do not show
// in a range. Zero bits if there is none.
__device__ __forceinline__ void load_strip(const Plan& plan, const PageView& view, u8* column, i64 strip, int valid,
                                           Pack<VALUE_BYTES> (&value)[STRIP]) {
    Rows rows(plan, column, view.first + strip * STRIP);
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        if (i < valid) {
            value[i] = load_pack<VALUE_BYTES>(rows.step());
        } else if (i) {
            value[i] = value[i - 1];
        } else {
#pragma unroll
            for (int word = 0; word < Pack<VALUE_BYTES>::COUNT; ++word) value[0].word[word] = 0;
        }
    }
}

// Pairs of 16-bit elements can be compared side by side.
#define PAIRED (VALUE_BYTES == 2 && VEC > 1)
