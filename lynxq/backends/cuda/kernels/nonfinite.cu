// Count the NaN and infinite values of the valid tokens and find the first one in C order.
#include "pages.cuh"

#define THREADS (LANES * STRIPS)
#define EXPONENT (VALUE_TYPE == FLOAT32 ? 0x7f800000u : VALUE_TYPE == FLOAT16 ? 0x7c00u : 0x7f80u)

extern "C" __global__ void __launch_bounds__(THREADS) lynxq_nonfinite(const Plan plan) {
    const Tile where = this_tile(plan, plan.pages);
    const u32 thread = threadIdx.x;
    const i64 channel = (where.group * LANES + thread % LANES) * VEC;
    const i64 begin = where.page * PAGE + (where.tile * STRIPS + thread / LANES) * STRIP;
    const i64 page_end = (where.page + 1) * PAGE, end = page_end < plan.tokens ? page_end : plan.tokens;
    if (channel >= plan.channels) return;
    u8* column = plan.values + outer_offset(plan, where.outer) + channel_offset(plan, channel);
    u64 count = 0, first = ~0ull;
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        if (begin + i >= end) continue;
        const Pack<VALUE_BYTES> pack = load_pack<VALUE_BYTES>(value_address(plan, column, begin + i));
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            if ((element(pack, k) & EXPONENT) != EXPONENT) continue;
            const u64 index = (u64)(where.outer * plan.length + begin + i) * plan.channels + channel + k;
            count += 1;
            first = index < first ? index : first;
        }
    }
    if (count == 0) return;
    atomicAdd(plan.report, count);
    atomicMin(plan.report + 1, first);
}
