// reduce.cuh: the weighted sum of bf16 rows, in a fixed order with one rounding a step: the same bits as on a
// CPU.
#pragma once

#include "team/gpu/quantize.cuh"

DEEP_LL_TIER_BEGIN

constexpr int kSumBatch = 8;  // rows whose vectors are under way together

TEAM_FN std::uint32_t narrow_pair(float low, float high) {
    std::uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Up to kSumBatch rows from `first` on are added to eight channels.
template <class Rows, class Weights>
TEAM_FN void add_rows(
    float (&sum)[8], const Rows& rows, const Weights& weights, int first, int n, int vector, bool valid) {
    Vec16 x[kSumBatch];
    bool there[kSumBatch];
#pragma unroll
    for (int i = 0; i < kSumBatch; ++i) {
        const bf16* row = first + i < n ? rows.at(first + i) : nullptr;
        there[i] = row != nullptr;
        x[i] = there[i] && valid ? load16(reinterpret_cast<const std::byte*>(row) + 16 * vector) : Vec16{};
    }
#pragma unroll
    for (int i = 0; i < kSumBatch; ++i) {
        if (first + i >= n) break;
        const float weight = weights.at(first + i);
        if (!there[i]) continue;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            sum[2 * c] = __fmaf_rn(weight, low_bf16(x[i].w[c]), sum[2 * c]);
            sum[2 * c + 1] = __fmaf_rn(weight, high_bf16(x[i].w[c]), sum[2 * c + 1]);
        }
    }
}

// Rows that are null are left out. Eight channels a lane.
template <class Team, class Rows, class Weights>
TEAM_FN void weighted_sum(
    const Team& team, bf16* out, const Rows& rows, const Weights& weights, int n, int hidden, Store) {
    const int total = hidden / 8;
    for (int start = 0; start < total; start += team.num_lanes()) {
        const int vector = start + team.lane();
        const bool valid = vector < total;
        float sum[8] = {};
        for (int first = 0; first < n; first += kSumBatch)
            add_rows(sum, rows, weights, first, n, vector, valid);
        if (!valid) continue;
        store16(out + 8 * vector, Vec16{narrow_pair(sum[0], sum[1]), narrow_pair(sum[2], sum[3]),
                                        narrow_pair(sum[4], sum[5]), narrow_pair(sum[6], sum[7])});
    }
}

DEEP_LL_TIER_END
