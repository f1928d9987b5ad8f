// logfmt.cuh: rows of bf16 to a peer in LogFMT, and weighted sums of such rows. Sixteen lanes share a group,
// eight channels each.
#pragma once

#include "core/logfmt.hpp"
#include "team/gpu/reduce.cuh"

DEEP_LL_TIER_BEGIN

constexpr int kLogBatch = 2;  // rows whose vectors are under way together: more would not fit into registers

// By Horner's rule.
template <int kTerms, class Term>
TEAM_FN float polynomial(Term term, float x) {
    float sum = term(kTerms - 1);
#pragma unroll
    for (int i = kTerms - 2; i >= 0; --i) sum = __fmaf_rn(sum, x, term(i));
    return sum;
}

// Of a normal positive bf16 value, as bits of a float.
TEAM_FN float log2_of(std::uint32_t bits) {
    constexpr float kBias = kRoundPositive + 127.0f;
    const float fraction = bits_float((bits & 0x7fffffu) | kOne) - 1.0f;
    const float exponent = bits_float((bits >> 23) | float_bits(kRoundPositive)) - kBias;
    const auto term = [](int i) { return log2_term(i); };
    return __fmaf_rn(fraction, polynomial<kLog2Terms>(term, fraction), exponent);
}

TEAM_FN float exp2_of(float x) {
    const float moved = x + kRoundAny;
    const float rest = x - (moved - kRoundAny);
    const auto term = [](int i) { return exp2_term(i); };
    const float mantissa = __fmaf_rn(rest, polynomial<kExp2Terms>(term, rest), 1.0f);
    return bits_float(float_bits(mantissa) + ((float_bits(moved) - float_bits(kRoundAny)) << 23));
}

struct GroupLog {
    LogScale scale;
    float inverse;
};

// Of this lane's group. All lanes of the warp come here.
TEAM_FN GroupLog group_log(const Vec16& x) {
    constexpr std::uint32_t kLeast = std::uint32_t{kSmallestNormal} << 16;
    std::uint32_t top = 0, rarest = 0;
    const auto consider = [&](std::uint32_t magnitude) {
        top = max(top, magnitude);
        // Zeros wrap around, so that the smallest one left is the smallest normal one.
        rarest = max(rarest, ~(magnitude - kLeast));
    };
#pragma unroll
    for (const std::uint32_t pair : x.w) {
        consider(pair << 16 & 0x7fff0000u);
        consider(pair & 0x7fff0000u);
    }
#pragma unroll
    for (int step = kGroupLanes / 2; step > 0; step /= 2) {
        top = max(top, __shfl_xor_sync(kAllLanes, top, step));
        rarest = max(rarest, __shfl_xor_sync(kAllLanes, rarest, step));
    }
    // Whatever is normal serves where there is nothing to cast.
    const bool finite = top < kFloatInf, has_range = finite && top >= kLeast;
    const float high = log2_of(has_range ? top : kOne);
    const float lowest = high - kLogRange, own = log2_of(has_range ? ~rarest + kLeast : kOne);
    const float low = own > lowest ? own : lowest, range = high - low;
    const float inverse = range > 0.0f ? __fdiv_rn(kLogSteps, range) : 0.0f;
    return {{finite ? low : bits_float(kFloatNan), range * kPerStep}, finite ? inverse : 0.0f};
}

// A code in the low nine bits, the sign in the tenth.
TEAM_FN std::uint32_t log_code(std::uint32_t bits, const GroupLog& group) {
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const float place = __fmaf_rn(log2_of(magnitude) - group.scale.low, group.inverse, 1.0f);
    const std::uint32_t code = float_bits((place > 1.0f ? place : 1.0f) + kRoundPositive) & 0x1ffu;
    return (magnitude < std::uint32_t{kSmallestNormal} << 16 ? 0u : code) | bits >> 31 << 9;
}

// Eight channels: `lane` counts within the group.
TEAM_FN void encode_eight(std::byte* group, int lane, const Vec16& x, const GroupLog& log) {
    std::uint32_t codes[2] = {}, pairs = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const std::uint32_t word = x.w[i / 2];
        const std::uint32_t code = log_code(i % 2 == 0 ? word << 16 : word & 0xffff0000u, log);
        codes[i / 4] |= (code & 0xffu) << (8 * (i % 4));
        pairs |= code >> 8 << (2 * i);
    }
    *reinterpret_cast<uint2*>(group + LogGroup::kCodes + 8 * lane) = uint2{codes[0], codes[1]};
    *reinterpret_cast<std::uint16_t*>(group + LogGroup::kPairs + 2 * lane) =
        static_cast<std::uint16_t>(pairs);
    if (lane == 0) *reinterpret_cast<float2*>(group) = float2{log.scale.low, log.scale.step};
}

// To `out`, which is shared memory. The next vector is fetched while one is cast.
template <class Team>
TEAM_FN void encode_groups(const Team& team, std::byte* out, const GroupRange& range) {
    const int total = range.groups * kGroupLanes;
    const auto* from = reinterpret_cast<const std::byte*>(range.row + range.first * kGroup);
    const auto fetch = [&](int place) { return place < total ? load16(from + 16 * place) : Vec16{}; };
    Vec16 next = fetch(team.lane());
    for (int start = 0; start < total; start += team.num_lanes()) {
        const int place = start + team.lane();
        const Vec16 x = next;
        next = fetch(place + team.num_lanes());
        const GroupLog log = group_log(x);
        if (place < total)
            encode_eight(out + place / kGroupLanes * LogGroup::kBytes, place % kGroupLanes, x, log);
    }
    if (range.groups % 2 != 0)
        team.once([&] { *reinterpret_cast<uint2*>(out + range.groups * LogGroup::kBytes) = uint2{0, 0}; });
}

// A row in LogFMT to a peer.
template <class Team>
TEAM_FN void put_logfmt(
    const Team& team, const PeerMap& peers, const Place& to, const bf16* row, int num_groups, Store) {
    const int chunk = static_cast<int>(team.half_bytes()) / (2 * LogGroup::kBytes) * 2;
    const auto target = team.fan(1, [&](int) { return row_place(peers, to); });
    for (int first = 0; first < num_groups; first += chunk) {
        const int groups = min(chunk, num_groups - first);
        encode_groups(team, open_half(team), GroupRange{row, first, groups});
        put_half(team, target, 1, static_cast<std::uint64_t>(first) * LogGroup::kBytes,
                 static_cast<std::uint32_t>(logfmt_bytes(groups)));
    }
}

// Eight channels of a row, as they came.
struct EncodedEight {
    LogScale scale;
    uint2 codes;
    std::uint32_t pairs;
};

TEAM_FN EncodedEight load_eight(const bf16* row, int vector) {
    const auto* group = reinterpret_cast<const std::byte*>(row) + vector / kGroupLanes * LogGroup::kBytes;
    const int lane = vector % kGroupLanes;
    const auto scale = load8(group);
    return {{bits_float(scale.x), bits_float(scale.y)},
            load8(group + LogGroup::kCodes + 8 * lane),
            load2(group + LogGroup::kPairs + 2 * lane)};
}

// Channel `i` of them.
TEAM_FN float decode(const EncodedEight& x, int i) {
    const std::uint32_t code =
        ((i < 4 ? x.codes.x : x.codes.y) >> (8 * (i % 4)) & 0xffu) | (x.pairs >> (2 * i) & 1u) << 8;
    const float ordinal = bits_float(code | float_bits(kRoundPositive)) - (kRoundPositive + 1.0f);
    const float value = exp2_of(__fmaf_rn(ordinal, x.scale.step, x.scale.low));
    const std::uint32_t sign = x.pairs >> (2 * i + 1) << 31;
    return bits_float((code == 0 ? 0u : float_bits(value)) | sign);
}

// All loads first, then the sum in order.
TEAM_FN void add_log_rows(float (&sum)[8], const RowBatch<kLogBatch>& batch, int vector) {
    EncodedEight x[kLogBatch];
#pragma unroll
    for (int i = 0; i < kLogBatch; ++i)
        if (batch.rows[i] != nullptr) x[i] = load_eight(batch.rows[i], vector);
#pragma unroll
    for (int i = 0; i < kLogBatch; ++i) {
        if (batch.rows[i] == nullptr) continue;
        const bool broken = (float_bits(x[i].scale.low) & 0x7fffffffu) > kFloatInf;
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            const float value = broken ? bits_float(kFloatNan) : decode(x[i], c);
            sum[c] = __fmaf_rn(batch.weights[i], value, sum[c]);
        }
    }
}

// The same as weighted_sum, of rows in LogFMT.
template <class Team, class Rows, class Weights>
TEAM_FN void weighted_sum_logfmt(
    const Team& team, bf16* out, const Rows& rows, const Weights& weights, int n, int num_groups, Store) {
    const int total = num_groups * kGroupLanes;
    for (int start = 0; start < total; start += team.num_lanes()) {
        const int vector = start + team.lane();
        float sum[8] = {};
        for (int first = 0; first < n; first += kLogBatch) {
            const auto batch = batch_of<kLogBatch>(rows, weights, first, n);  // all lanes
            if (vector < total) add_log_rows(sum, batch, vector);
        }
        if (vector < total) store_sum(out, vector, sum);
    }
}

DEEP_LL_TIER_END
