// Encode: both streams of a tensor in one launch. ENCODER picks how a block of threads owns its values.
#include "plan.cuh"

#define INFINITY_F __uint_as_float(0x7f800000u)

#if ENCODER == 0
#include "encode_token.cuh"
#elif ENCODER == 1
#include "encode_channel.cuh"
#else
#include "encode_plain.cuh"
#endif

extern "C" __global__ void __launch_bounds__(THREADS) lynxq_encode(const Plan plan) { encode(plan); }
