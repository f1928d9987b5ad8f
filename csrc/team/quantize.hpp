// quantize.hpp: a row of bf16 becomes e4m3 with a scale for each group of 128 channels.
#pragma once

#include "team/team.hpp"
#include "team/vec.hpp"

DEEP_LL_TIER_BEGIN

// e4m3 bits of non-negative values up to 448 (rounding may take them a hair above), round to nearest even.
TEAM_FN VecU32 e4m3_bits(VecF32 magnitude) {
    const VecU32 bits = as_bits(magnitude);
    const VecU32 normal = (bits + ((bits >> 20) & 1u) + (0x7ffffu - (120u << 23))) >> 20;
    const VecU32 tiny = as_bits(magnitude + 16384.0f) - 0x46800000u;  // below 2^-6: multiples of 2^-9
    return bits < 0x3c800000u ? tiny : normal;
}

// Two neighbours at a time: a word holds the even channel in its low half, the odd one in its high half.
TEAM_FN VecU32 quantize_pairs(VecU32 pairs, float forward) {
    const VecU32 magnitudes = pairs & 0x7fff7fffu;
    const VecU32 even = e4m3_bits(as_float(magnitudes << 16) * forward);
    const VecU32 odd = e4m3_bits(as_float(magnitudes & 0xffff0000u) * forward);
    const VecU32 signs = ((pairs >> 8) & 0x80u) | ((pairs >> 16) & 0x8000u);
    return even | (odd << 8) | signs;
}

TEAM_FN float group_amax(const bf16* group) {
    VecU16 top{};
    for (int i = 0; i < kGroup; i += 2 * kLanes) top = max_of(top, load<VecU16>(group + i) & std::uint16_t{0x7fff});
    return widen({largest(top)});
}

TEAM_FN void quantize_group(std::uint8_t* out, const bf16* group, float forward) {
    for (int i = 0; i < kGroup; i += 4 * kLanes) {
        const VecU32 low = quantize_pairs(load<VecU32>(group + i), forward);
        const VecU32 high = quantize_pairs(load<VecU32>(group + i + 2 * kLanes), forward);
        store(out + i, pack(low, high));
    }
}

// `scales`: a float for each group, or its exponent byte, padded with zeros to whole words.
// A NaN or an infinity makes its whole group NaN: no finite scale could say more.
template <class Team>
TEAM_FN void quantize(const Team& team, std::uint8_t* out, std::byte* scales, const bf16* row, int num_groups, Format format) {
    const bool rounded = format != Format::fp8;
    team.lanes(num_groups, [&](int g) {
        const bf16* group = row + g * kGroup;
        const float amax = group_amax(group);
        Scale scale{0.0f, bits_float(kFloatNan)};
        if (is_finite(amax)) {
            scale = scale_of(amax, rounded);
            quantize_group(out + g * kGroup, group, scale.forward);
        } else {
            std::memset(out + g * kGroup, kE4m3Nan, kGroup);
        }
        if (format == Format::fp8_ue8m0)
            scales[g] = static_cast<std::byte>(ue8m0(scale.inverse));
        else
            std::memcpy(scales + g * 4, &scale.inverse, 4);
    });
    if (format != Format::fp8_ue8m0) return;
    for (int g = num_groups; g % 4 != 0; ++g) scales[g] = std::byte{0};
}

DEEP_LL_TIER_END
