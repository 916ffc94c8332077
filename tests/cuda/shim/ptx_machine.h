// What the translation of PTX needs beyond the shim: typed registers, shifts, shuffles, PTX's memory operations.
#pragma once
#include "cuda_host_shim.h"
#undef fminf
#undef fmaxf

namespace ptx {
// A register read as the type of an instruction: its low bits.
template <class T, class R> static inline T get(R r) {
    if constexpr (sizeof(T) == sizeof(R)) {
        return shim_bits<T>(r);
    } else {
        static_assert(std::is_integral<T>::value && std::is_integral<R>::value && sizeof(T) < sizeof(R), "register width");
        return (T)r;
    }
}
// A result as the bits of a register, extended as its sign wants.
template <class D, class T> static inline D put(T v) {
    if constexpr (sizeof(D) == sizeof(T)) return shim_bits<D>(v);
    else return (D)(std::conditional_t<std::is_signed<T>::value, std::make_signed_t<D>, D>)v;
}
// The builtin lets the undefined behaviour sanitizer see an address that is not a multiple of the type's size.
template <class T> static inline T load(uint64_t a) { T v; memcpy(&v, __builtin_assume_aligned((const void*)a, alignof(T)), sizeof v); return v; }
template <class T> static inline void store(uint64_t a, T v) { memcpy(__builtin_assume_aligned((void*)a, alignof(T)), &v, sizeof v); }

template <class T> static inline T shl(T a, uint32_t n) { return n >= sizeof(T) * 8 ? 0 : (T)(a << n); }
template <class T> static inline T shr(T a, uint32_t n) { return n >= sizeof(T) * 8 ? (T)(a < 0 ? -1 : 0) : (T)(a >> n); }
template <class T> static inline T mulhi(T a, T b) {
    using Wide = std::conditional_t<std::is_signed<T>::value, __int128, unsigned __int128>;
    return (T)((Wide)a * (Wide)b >> (sizeof(T) * 8));
}
static inline uint32_t bfi(uint32_t a, uint32_t b, uint32_t pos, uint32_t len) {
    pos &= 255; len &= 255;
    uint32_t mask = len >= 32 ? ~0u : (1u << len) - 1;
    mask = pos >= 32 ? 0 : mask << pos;
    return (b & ~mask) | (pos >= 32 ? 0 : (a << pos & mask));
}
static inline uint32_t bfe(uint32_t a, uint32_t pos, uint32_t len) {
    pos &= 255; len &= 255;
    return pos >= 32 || !len ? 0 : a >> pos & (len >= 32 ? ~0u : (1u << len) - 1);
}
// Picks bytes; bit 3 of a selector fills the byte with the sign of the one picked.
static inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int k = 0; k < 4; ++k) {
        const uint32_t pick = selector >> (4 * k) & 15, byte = (uint32_t)(both >> (pick & 7) * 8) & 255;
        result |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * k);
    }
    return result;
}
// kind 0 up, 1 down, 2 butterfly, 3 index; c holds the clamp and the segment mask as PTX packs them.
static inline uint32_t shfl(int kind, uint32_t v, uint32_t b, uint32_t c, uint32_t mask, int line) {
    const int lane = shim::self->lin & 31, by = b & 31, seg = c >> 8 & 31, clamp = c & 31;
    const int highest = (lane & seg) | (clamp & ~seg), lowest = lane & seg;
    const int from[4] = {lane - by, lane + by, lane ^ by, lowest | (by & ~seg)};
    const bool inside = kind == 0 ? from[0] >= highest : from[kind] <= highest;
    return shim::shfl(mask, v, (unsigned)(inside ? from[kind] : lane), line);
}
// Minimum and maximum of both halves of a word.
template <class F> static inline uint32_t halves(uint32_t a, uint32_t b, F f) { return f(a & 0xffff, b & 0xffff) | f(a >> 16, b >> 16) << 16; }
static inline float bfloat(uint32_t h) { return __uint_as_float(h << 16); }
static inline float half(uint32_t h) { return __half2float(__half{(unsigned short)h}); }
static inline uint32_t min_bf16(uint32_t a, uint32_t b) { return __float_as_uint(shim_fmin(bfloat(a), bfloat(b))) >> 16; }
static inline uint32_t max_bf16(uint32_t a, uint32_t b) { return __float_as_uint(shim_fmax(bfloat(a), bfloat(b))) >> 16; }
static inline uint32_t min_f16(uint32_t a, uint32_t b) { return __float2half_rn(shim_fmin(half(a), half(b))).x; }
static inline uint32_t max_f16(uint32_t a, uint32_t b) { return __float2half_rn(shim_fmax(half(a), half(b))).x; }
}  // namespace ptx
