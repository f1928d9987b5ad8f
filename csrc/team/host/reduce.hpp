// reduce.hpp: the weighted sum of bf16 rows, in a fixed order with one rounding a step: the same bits
// everywhere.
#pragma once

#include "team/host/copy.hpp"

DEEP_LL_TIER_BEGIN

struct WeightedRows {
    const bf16* rows[kMaxFan];
    float weights[kMaxFan];
    int count;
};

// bf16 bits of two vectors, `even` in the low halves. Every NaN becomes 0x7fff.
TEAM_FN VecU32 narrow_pairs(VecF32 even, VecF32 odd) {
    const VecU32 nan = VecU32{} + 0x7fff0000u;
    VecU32 e = as_bits(even), o = as_bits(odd);
    e = (e & 0x7fffffffu) > kFloatInf ? nan : e + 0x7fffu + ((e >> 16) & 1u);
    o = (o & 0x7fffffffu) > kFloatInf ? nan : o + 0x7fffu + ((o >> 16) & 1u);
    return (e >> 16) | (o & 0xffff0000u);
}

// kVectors vectors of every row, starting at channel `at`.
template <int kVectors, bool kStreaming>
TEAM_FN void sum_block(bf16* out, const WeightedRows& in, int at) {
    VecF32 even[kVectors]{}, odd[kVectors]{};
    for (int k = 0; k < in.count; ++k) {
        const VecF32 weight = VecF32{} + in.weights[k];
        prefetch(in.rows[k] + at + kVectors * 4 * kLanes);  // two blocks ahead
        for (int v = 0; v < kVectors; ++v) {
            const VecU32 pairs = load<VecU32>(in.rows[k] + at + v * 2 * kLanes);
            even[v] = fma_once(weight, as_float(pairs << 16), even[v]);
            odd[v] = fma_once(weight, as_float(pairs & 0xffff0000u), odd[v]);
        }
    }
    for (int v = 0; v < kVectors; ++v) {
        const VecU32 sum = narrow_pairs(even[v], odd[v]);
        bf16* to = out + at + v * 2 * kLanes;
        if constexpr (kStreaming)
            stream_vector(reinterpret_cast<std::byte*>(to), sum);
        else
            store(to, sum);
    }
}

template <bool kStreaming>
TEAM_FN void sum_row(bf16* out, const WeightedRows& in, int hidden) {
    constexpr int kVectors = static_cast<int>(kLine) / kVecBytes;  // a line of each row
    constexpr int kBlock = kVectors * 2 * kLanes;
    int at = 0;
    for (; at + kBlock <= hidden; at += kBlock) sum_block<kVectors, kStreaming>(out, in, at);
    for (; at < hidden; ++at) {
        float sum = 0.0f;
        for (int k = 0; k < in.count; ++k) sum = fma_once(in.weights[k], widen(in.rows[k][at]), sum);
        out[at] = narrow(sum);
    }
}

// Rows that are null are left out.
template <class Rows, class Weights>
TEAM_FN WeightedRows present_rows(const Rows& rows, const Weights& weights, int n) {
    WeightedRows in;
    in.count = 0;
    for (int k = 0; k < n; ++k) {
        if (rows.at(k) == nullptr) continue;
        in.rows[in.count] = rows.at(k);
        in.weights[in.count++] = weights.at(k);
    }
    return in;
}

template <class Team, class Rows, class Weights>
TEAM_FN void weighted_sum(
    const Team&, bf16* out, const Rows& rows, const Weights& weights, int n, int hidden, Store how) {
    const WeightedRows in = present_rows(rows, weights, n);
    if (how == Store::streaming && reinterpret_cast<std::uintptr_t>(out) % kVecBytes == 0)
        sum_row<true>(out, in, hidden);
    else
        sum_row<false>(out, in, hidden);
}

DEEP_LL_TIER_END
