// quantize.hpp: a row of bf16 becomes e4m3 with a scale for each group of 128 channels, and goes to all its
// targets.
#pragma once

#include "team/copy.hpp"

DEEP_LL_TIER_BEGIN

using VecU8 = std::uint8_t __attribute__((vector_size(kVecBytes)));

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
TEAM_FN VecU32 quantize_pairs(VecU32 pairs, float forward) {
    const VecU32 even = e4m3_codes(as_float((pairs & 0x7fffu) << 16) * forward);
    const VecU32 odd = e4m3_codes(as_float(pairs & 0x7fff0000u) * forward);
    return (even & 0xffu) | ((odd & 0xffu) << 8);
}

TEAM_FN VecU32 signs_of(VecU32 pairs) {
    return ((pairs >> 8) & 0x80u) | ((pairs >> 16) & 0x8000u);
}

TEAM_FN float group_amax(const bf16* group) {
    VecU16 top{};
    for (int i = 0; i < kGroup; i += 2 * kLanes)
        top = max_of(top, load<VecU16>(group + i) & std::uint16_t{0x7fff});
    return widen({largest(top)});
}

TEAM_FN void quantize_group(std::byte* out, const bf16* group, float forward) {
    for (int i = 0; i < kGroup; i += 4 * kLanes) {
        const VecU32 low = load<VecU32>(group + i), high = load<VecU32>(group + i + 2 * kLanes);
        const auto codes =
            __builtin_bit_cast(VecU8, pack(quantize_pairs(low, forward), quantize_pairs(high, forward)));
        const auto signs = __builtin_bit_cast(VecU8, pack(signs_of(low), signs_of(high)));
        store(out + i, (codes + kCodeOffset) | signs);
    }
}

struct ChunkScales {
    float forward[kChunkGroups];
    float inverse[kChunkGroups];
};

// A NaN or an infinity makes its whole group NaN: no finite scale could say more.
TEAM_FN void scales_of(ChunkScales& out, const bf16* row, int num_groups, bool rounded) {
    for (int g = 0; g < num_groups; ++g) out.inverse[g] = group_amax(row + g * kGroup);
    for (int g = 0; g < num_groups; ++g) {
        const float amax = out.inverse[g];
        const Scale scale = scale_of(amax, rounded);
        out.forward[g] = scale.forward;
        out.inverse[g] = is_finite(amax) ? scale.inverse : bits_float(kFloatNan);
    }
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
                            const ChunkScales& scales) {
    constexpr int kBlockGroups = 4;
    alignas(kLine) std::byte block[kBlockGroups * kGroup];
    for (int first = 0; first < num_groups; first += kBlockGroups) {
        const int groups = num_groups - first < kBlockGroups ? num_groups - first : kBlockGroups;
        for (int g = 0; g < groups; ++g) {
            const float inverse = scales.inverse[first + g];
            if (is_finite(inverse))
                quantize_group(block + g * kGroup, row + (first + g) * kGroup, scales.forward[first + g]);
            else
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
            quantize_chunk<true>(targets, num_targets, at, from, groups, chunk);
        else
            quantize_chunk<false>(targets, num_targets, at, from, groups, chunk);
    }
    if (format != Format::fp8_ue8m0) return;
    for (int g = num_groups; g % 4 != 0; ++g) scales[g] = std::byte{0};
}

DEEP_LL_TIER_END
