// logfmt.hpp: rows of bf16 to a peer in LogFMT, and weighted sums of such rows.
#pragma once

#include "core/logfmt.hpp"
#include "team/host/reduce.hpp"

DEEP_LL_TIER_BEGIN

// By Horner's rule.
template <int kTerms, class Term>
TEAM_FN VecF32 polynomial(Term term, VecF32 x) {
    VecF32 sum = VecF32{} + term(kTerms - 1);
    for (int i = kTerms - 2; i >= 0; --i) sum = fma_once(sum, x, VecF32{} + term(i));
    return sum;
}

// Of normal positive bf16 values, as bits of floats.
TEAM_FN VecF32 log2_of(VecU32 bits) {
    constexpr float kBias = kRoundPositive + 127.0f;
    const VecF32 fraction = as_float((bits & 0x7fffffu) | kOne) - 1.0f;
    const VecF32 exponent = as_float((bits >> 23) | float_bits(kRoundPositive)) - kBias;
    return fma_once(fraction, polynomial<kLog2Terms>(log2_term, fraction), exponent);
}

TEAM_FN VecF32 exp2_of(VecF32 x) {
    const VecF32 moved = x + kRoundAny;
    const VecF32 rest = x - (moved - kRoundAny);
    const VecF32 mantissa = fma_once(rest, polynomial<kExp2Terms>(exp2_term, rest), VecF32{} + 1.0f);
    return as_float(as_bits(mantissa) + ((as_bits(moved) - float_bits(kRoundAny)) << 23));
}

// The largest magnitude of a group, and the smallest one that is not zero, as bits of bf16.
struct Extremes {
    std::uint16_t least, top;
};
TEAM_FN Extremes extremes_of(const bf16* group) {
    VecU16 top{}, rarest{};
    for (int i = 0; i < kGroup; i += 2 * kLanes) {
        const VecU16 magnitude = load<VecU16>(group + i) & std::uint16_t{0x7fff};
        top = max_of(top, magnitude);
        // Zeros wrap around, so that the smallest one left is the smallest normal one.
        rarest = max_of(rarest, ~(magnitude - kSmallestNormal));
    }
    const auto least = static_cast<std::uint16_t>(~largest(rarest));
    return {static_cast<std::uint16_t>(least + kSmallestNormal), largest(top)};
}

constexpr int kLogChunk = 64;  // groups whose scales are computed side by side

struct LogScales {
    float low[kLogChunk];
    float step[kLogChunk];
    float inverse[kLogChunk];
    bool finite[kLogChunk];
};

TEAM_FN void log_scales_of(LogScales& out, const bf16* row, int num_groups) {
    alignas(kLine) std::uint32_t least[kLogChunk], top[kLogChunk];
    for (int g = 0; g < (num_groups + kLanes - 1) / kLanes * kLanes; ++g) {
        const Extremes e = g < num_groups ? extremes_of(row + g * kGroup) : Extremes{0, 0};
        out.finite[g] = e.top < kFloatInf >> 16;
        // Whatever is normal serves where there is nothing to cast.
        const bool has_range = out.finite[g] && e.top >= kSmallestNormal;
        least[g] = has_range ? static_cast<std::uint32_t>(e.least) << 16 : kOne;
        top[g] = has_range ? static_cast<std::uint32_t>(e.top) << 16 : kOne;
    }
    for (int g = 0; g < num_groups; g += kLanes) {
        const VecF32 high = log2_of(load<VecU32>(top + g)), lowest = high - kLogRange;
        VecF32 low = log2_of(load<VecU32>(least + g));
        low = low > lowest ? low : lowest;
        const VecF32 range = high - low;
        store(out.low + g, low);
        store(out.step + g, range * kPerStep);
        store(out.inverse + g, range > 0.0f ? kLogSteps / range : VecF32{});
    }
}

// A code in the low nine bits of each lane, the sign in the tenth. `bits`: of bf16 values, widened.
TEAM_FN VecU32 log_codes(VecU32 bits, VecF32 low, VecF32 inverse) {
    const VecU32 magnitude = bits & 0x7fffffffu;
    const VecF32 one = VecF32{} + 1.0f;
    const VecF32 place = fma_once(log2_of(magnitude) - low, inverse, one);
    const VecU32 code = as_bits((place > one ? place : one) + kRoundPositive) & 0x1ffu;
    const VecU32 sign = bits >> 31 << 9;
    return (magnitude < std::uint32_t{kSmallestNormal} << 16 ? VecU32{} : code) | sign;
}

// Of the words of two neighbours.
TEAM_FN VecU16 log_code_pairs(VecU32 pairs, VecF32 low, VecF32 inverse) {
    const VecU32 even = log_codes(pairs << 16, low, inverse);
    const VecU32 odd = log_codes(pairs & 0xffff0000u, low, inverse);
    return __builtin_bit_cast(VecU16, even | odd << 16);
}

using LaneWords = std::uint16_t __attribute__((vector_size(2 * kLanes)));
using LaneBytes = std::uint8_t __attribute__((vector_size(kLanes)));

TEAM_FN void encode_group(std::byte* out, const bf16* group, const LogScale& scale, float inverse) {
    std::memcpy(out, &scale, sizeof scale);
    const VecF32 low = VecF32{} + scale.low, factor = VecF32{} + inverse;
    for (int i = 0; i < kGroup; i += 4 * kLanes) {
        const VecU16 first = log_code_pairs(load<VecU32>(group + i), low, factor);
        const VecU16 second = log_code_pairs(load<VecU32>(group + i + 2 * kLanes), low, factor);
        constexpr std::uint16_t kLowByte = 0xff;
        store(out + LogGroup::kCodes + i, pack(first & kLowByte, second & kLowByte));
        // Four bytes with two bits each in a word become its highest byte.
        const VecU32 twos = __builtin_bit_cast(VecU32, pack(first >> 8, second >> 8));
        const VecU32 folded = twos * (1u << 24 | 1u << 18 | 1u << 12 | 1u << 6) >> 24;
        store(out + LogGroup::kPairs + i / 4, __builtin_convertvector(folded, LaneBytes));
    }
}

// A row in LogFMT to a peer that may be behind a link.
template <class Team>
TEAM_FN void put_logfmt(
    const Team& team, const PeerMap& peers, const Place& to, const bf16* row, int num_groups, Store how) {
    constexpr int kBlockGroups = 8;  // whole lines
    alignas(kLine) std::byte block[kBlockGroups * LogGroup::kBytes];
    const bool linked = peers.is_linked(to.peer);
    std::byte* out = linked ? team.stage(logfmt_bytes(num_groups)) : peers.at<std::byte>(to.peer, to.offset);
    if (linked) how = Store::cached;  // it is read at once
    LogScales scales;
    for (int g = 0; g < num_groups; ++g) {
        const bf16* group = row + g * kGroup;
        if (g % kLogChunk == 0)
            log_scales_of(scales, group, num_groups - g < kLogChunk ? num_groups - g : kLogChunk);
        const int s = g % kLogChunk, b = g % kBlockGroups;
        for (int i = 0; i < kGroup; i += 32) prefetch(group + num_groups * kGroup + i);  // of the next row
        LogScale scale{scales.low[s], scales.step[s]};
        encode_group(block + b * LogGroup::kBytes, group, scale, scales.inverse[s]);
        if (!scales.finite[s]) std::memcpy(block + b * LogGroup::kBytes, &kFloatNan, sizeof kFloatNan);
        if (b + 1 < kBlockGroups && g + 1 < num_groups) continue;
        std::memset(block + (b + 1) * LogGroup::kBytes, 0, b % 2 == 0 ? 8 : 0);
        put(team, out + (g - b) * LogGroup::kBytes, block, logfmt_bytes(b + 1), how);
    }
    ship_from(team, peers, to, out, logfmt_bytes(num_groups));
}

// Group `g` of rows in LogFMT.
TEAM_FN const std::byte* log_group(const bf16* row, int g) {
    return reinterpret_cast<const std::byte*>(row) + g * LogGroup::kBytes;
}

// kLanes values from channel `at` on.
TEAM_FN VecF32 decode(const std::byte* group, const LogScale& scale, int at) {
    const VecU32 low_bits = __builtin_convertvector(load<LaneBytes>(group + LogGroup::kCodes + at), VecU32);
    std::uint32_t packed = 0;
    std::memcpy(&packed, group + LogGroup::kPairs + at / 4, kLanes / 4);
    VecU32 shifts;
    for (int i = 0; i < kLanes; ++i) shifts[i] = static_cast<std::uint32_t>(2 * i);
    const VecU32 pairs = (VecU32{} + packed) >> shifts;
    const VecU32 code = low_bits | (pairs & 1u) << 8;
    const VecF32 ordinal = as_float(code | float_bits(kRoundPositive)) - (kRoundPositive + 1.0f);
    const VecF32 value = exp2_of(fma_once(ordinal, VecF32{} + scale.step, VecF32{} + scale.low));
    const VecU32 bits = code == 0u ? VecU32{} : as_bits(value);
    return as_float(bits | (pairs & 2u) << 30);
}

// The sum of one group of all rows.
TEAM_FN void sum_log_group(bf16* out, const WeightedRows& in, int g) {
    constexpr int kBlock = 4 * kLanes < kGroup ? 4 * kLanes : kGroup;
    for (int at = 0; at < kGroup; at += kBlock) {
        VecF32 sum[kBlock / kLanes]{};
        for (int k = 0; k < in.count; ++k) {
            const std::byte* group = log_group(in.rows[k], g);
            const auto scale = load<LogScale>(group);
            const VecF32 weight = VecF32{} + in.weights[k];
            const bool broken = (float_bits(scale.low) & 0x7fffffffu) > kFloatInf;
            for (int v = 0; v < kBlock / kLanes; ++v) {
                VecF32 value = VecF32{} + bits_float(kFloatNan);
                if (!broken) value = decode(group, scale, at + v * kLanes);
                sum[v] = fma_once(weight, value, sum[v]);
            }
        }
        for (int v = 0; v < kBlock / kLanes; ++v)
            store(out + at + v * kLanes,
                  __builtin_convertvector(narrow_pairs(sum[v], sum[v]) >> 16, LaneWords));
    }
}

// The same as weighted_sum, of rows in LogFMT.
template <class Team, class Rows, class Weights>
TEAM_FN void weighted_sum_logfmt(
    const Team&, bf16* out, const Rows& rows, const Weights& weights, int n, int num_groups, Store) {
    const WeightedRows in = present_rows(rows, weights, n);
    for (int g = 0; g < num_groups; ++g) sum_log_group(out + g * kGroup, in, g);
}

DEEP_LL_TIER_END
