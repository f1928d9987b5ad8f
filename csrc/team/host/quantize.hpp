// quantize.hpp: a row of bf16 becomes e4m3 with a scale for each group of 128 channels, and goes to all its
// targets.
#pragma once

#include "team/host/copy.hpp"

DEEP_LL_TIER_BEGIN

constexpr int kChunkGroups = 64;                      // groups whose scales are computed side by side
constexpr std::uint32_t kSmallestPower = 121u << 23;  // 2^-6: below it e4m3 has fixed steps of 2^-9
constexpr std::uint8_t kCodeOffset = 56;

// e4m3 codes less 56 in the low byte of each lane, of non-negative values up to 448 (or a hair above).
// Adding 2^20 times the value's own power of two lets the adder round to three bits, to nearest even.
TEAM_FN VecU32 e4m3_codes(VecF32 magnitude) {
    const VecU32 exponent = as_bits(magnitude) & 0x7f800000u;
    const VecU32 power = exponent > kSmallestPower ? exponent : VecU32{} + kSmallestPower;
    const VecU32 sum = as_bits(magnitude + as_float(power + (20u << 23)));
    return sum + (power >> 20);
}

// Two neighbours at a time: a word holds the even channel in its low half, the odd one in its high half.
TEAM_FN VecU16 quantize_pairs(VecU32 pairs, VecF32 forward) {
    const VecU32 magnitudes = pairs & 0x7fff7fffu;
    const VecU32 even = e4m3_codes(as_float(magnitudes << 16) * forward);
    const VecU32 odd = e4m3_codes(as_float(magnitudes & 0xffff0000u) * forward);
    return __builtin_bit_cast(VecU16, (even & 0xffu) | ((odd & 0xffu) << 16));
}

TEAM_FN VecU16 sign_bytes(VecU32 pairs) {
    return __builtin_bit_cast(VecU16, (pairs >> 8) & 0x00800080u);
}

TEAM_FN float group_amax(const bf16* group) {
    VecU16 top{};
    for (int i = 0; i < kGroup; i += 2 * kLanes)
        top = max_of(top, load<VecU16>(group + i) & std::uint16_t{0x7fff});
    return widen({largest(top)});
}

TEAM_FN void quantize_group(std::byte* out, const bf16* group, float scale) {
    const VecF32 forward = VecF32{} + scale;
    for (int i = 0; i < kGroup; i += 4 * kLanes) {
        const VecU32 low = load<VecU32>(group + i), high = load<VecU32>(group + i + 2 * kLanes);
        const VecU8 codes = pack(quantize_pairs(low, forward), quantize_pairs(high, forward));
        store(out + i, (codes + kCodeOffset) | pack(sign_bytes(low), sign_bytes(high)));
    }
}

struct ChunkScales {
    float forward[kChunkGroups];
    float inverse[kChunkGroups];
    bool finite;  // all of them
};

// Largest magnitudes first, then all divisions side by side.
TEAM_FN void scales_of(ChunkScales& out, const bf16* row, int num_groups, bool rounded) {
    float amax[kChunkGroups];
    float top = 0.0f;
    for (int g = 0; g < num_groups; ++g) {
        amax[g] = group_amax(row + g * kGroup);
        top = float_bits(amax[g]) > float_bits(top) ? amax[g] : top;
    }
    out.finite = is_finite(top);
    for (int g = num_groups; g % kLanes != 0; ++g) amax[g] = 0.0f;
    for (int g = 0; g < num_groups; g += kLanes) {
        const VecF32 least = VecF32{} + kSmallestAmax, value = load<VecF32>(amax + g);
        const VecF32 most = value < least ? least : value;
        const VecF32 quotient = most / kE4m3Max;
        // Up to the next power of two: the exponent, one more if any mantissa bit is set.
        const VecU32 exponent = (as_bits(quotient) + 0x7fffffu) >> 23;
        store(out.forward + g, rounded ? as_float((254u - exponent) << 23) : kE4m3Max / most);
        store(out.inverse + g, rounded ? as_float(exponent << 23) : quotient);
    }
    if (out.finite) return;
    // A NaN or an infinity makes its whole group NaN: no finite scale could say more.
    for (int g = 0; g < num_groups; ++g)
        if (!is_finite(amax[g])) out.inverse[g] = bits_float(kFloatNan);
}

// `scales`: a float for each group, or its exponent byte.
TEAM_FN void write_scales(std::byte* scales, const ChunkScales& chunk, int num_groups, Format format) {
    if (format != Format::fp8_ue8m0) {
        std::memcpy(scales, chunk.inverse, static_cast<std::size_t>(num_groups) * 4);
        return;
    }
    for (int g = 0; g < num_groups; ++g) scales[g] = static_cast<std::byte>(ue8m0(chunk.inverse[g]));
}

// A block of groups is cast and goes to every target before the next one: what a processor has not yet
// written out of one block overlaps with the cast of the next.
template <bool kStreaming, class Targets>
TEAM_FN void quantize_chunk(const Targets& targets,
                            int num_targets,
                            std::uint64_t at,
                            const bf16* row,
                            int num_groups,
                            int row_stride,
                            const ChunkScales& scales) {
    constexpr int kBlockGroups = 4;
    alignas(kLine) std::byte block[kBlockGroups * kGroup];
    for (int first = 0; first < num_groups; first += kBlockGroups) {
        const int groups = num_groups - first < kBlockGroups ? num_groups - first : kBlockGroups;
        for (int g = 0; g < groups; ++g) {
            const bf16* group = row + (first + g) * kGroup;
            for (int i = 0; i < kGroup; i += 32) prefetch(group + row_stride + i);  // of the next row
            quantize_group(block + g * kGroup, group, scales.forward[first + g]);
            if (!scales.finite && !is_finite(scales.inverse[first + g]))
                std::memset(block + g * kGroup, kE4m3Nan, kGroup);
        }
        const auto bytes = static_cast<std::uint64_t>(groups * kGroup);
        for (int k = 0; k < num_targets; ++k)
            if (targets.at(k) != nullptr)
                copy_block<kStreaming>(targets.at(k) + at + static_cast<std::uint64_t>(first * kGroup), block,
                                       bytes);
    }
}

// The cast row goes to targets.at(k), k < num_targets, where that is not null; its scales go to `scales`, in
// this team's memory, padded with zeros to whole words.
template <class Team, class Targets>
TEAM_FN void quantize_to(const Team&,
                         const Targets& targets,
                         int num_targets,
                         std::byte* scales,
                         const bf16* row,
                         int num_groups,
                         Format format,
                         Store how) {
    for (int first = 0; first < num_groups; first += kChunkGroups) {
        const int groups = num_groups - first < kChunkGroups ? num_groups - first : kChunkGroups;
        const bf16* from = row + first * kGroup;
        const auto at = static_cast<std::uint64_t>(first * kGroup);
        ChunkScales chunk;
        scales_of(chunk, from, groups, format != Format::fp8);
        write_scales(scales + (format == Format::fp8_ue8m0 ? first : first * 4), chunk, groups, format);
        if (how == Store::streaming)
            quantize_chunk<true>(targets, num_targets, at, from, groups, num_groups * kGroup, chunk);
        else
            quantize_chunk<false>(targets, num_targets, at, from, groups, num_groups * kGroup, chunk);
    }
    if (format != Format::fp8_ue8m0) return;
    for (int g = num_groups; g % 4 != 0; ++g) scales[g] = std::byte{0};
}

DEEP_LL_TIER_END
