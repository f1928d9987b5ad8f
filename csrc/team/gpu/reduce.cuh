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

// Up to kRows rows; null where there is none. Only constants index it, so it stays in registers.
template <int kRows>
struct RowBatch {
    const bf16* rows[kRows];
    float weights[kRows];
};

template <int kRows, class Rows, class Weights>
TEAM_FN RowBatch<kRows> batch_of(const Rows& rows, const Weights& weights, int first, int n) {
    RowBatch<kRows> batch;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        batch.rows[i] = first + i < n ? rows.at(first + i) : nullptr;
        batch.weights[i] = weights.at(first + i < n ? first + i : 0);
    }
    return batch;
}

// All loads first, then the sum in order.
TEAM_FN void add_rows(float (&sum)[8], const RowBatch<kSumBatch>& batch, int vector) {
    Vec16 x[kSumBatch];
#pragma unroll
    for (int i = 0; i < kSumBatch; ++i)
        if (batch.rows[i] != nullptr)
            x[i] = load16(reinterpret_cast<const std::byte*>(batch.rows[i]) + 16 * vector);
#pragma unroll
    for (int i = 0; i < kSumBatch; ++i) {
        if (batch.rows[i] == nullptr) continue;
        const float weight = batch.weights[i];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            sum[2 * c] = __fmaf_rn(weight, low_bf16(x[i].w[c]), sum[2 * c]);
            sum[2 * c + 1] = __fmaf_rn(weight, high_bf16(x[i].w[c]), sum[2 * c + 1]);
        }
    }
}

TEAM_FN void store_sum(bf16* out, int vector, const float (&sum)[8]) {
    store16(out + 8 * vector, Vec16{narrow_pair(sum[0], sum[1]), narrow_pair(sum[2], sum[3]),
                                    narrow_pair(sum[4], sum[5]), narrow_pair(sum[6], sum[7])});
}

// Rows that are null are left out. Eight channels a lane.
template <class Team, class Rows, class Weights>
TEAM_FN void weighted_sum(
    const Team& team, bf16* out, const Rows& rows, const Weights& weights, int n, int hidden, Store) {
    const int total = hidden / 8;
    if (n <= kSumBatch) {
        const auto batch = batch_of<kSumBatch>(rows, weights, 0, n);
        for (int vector = team.lane(); vector < total; vector += team.num_lanes()) {
            float sum[8] = {};
            add_rows(sum, batch, vector);
            store_sum(out, vector, sum);
        }
        return;
    }
    for (int start = 0; start < total; start += team.num_lanes()) {
        const int vector = start + team.lane();
        float sum[8] = {};
        for (int first = 0; first < n; first += kSumBatch) {
            const auto batch = batch_of<kSumBatch>(rows, weights, first, n);  // all lanes
            if (vector < total) add_rows(sum, batch, vector);
        }
        if (vector < total) store_sum(out, vector, sum);
    }
}

DEEP_LL_TIER_END
