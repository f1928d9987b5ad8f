// quantize.cuh: a row of bf16 becomes e4m3 with a scale for each group of 128 channels, and goes to all its
// targets. Sixteen lanes share a group, eight channels each.
#pragma once

#include "team/gpu/copy.cuh"

DEEP_LL_TIER_BEGIN

constexpr int kGroupLanes = 16;
constexpr int kCastBatch = 8;  // loads of a lane that are under way together

// Two values, the second in the high byte.
TEAM_FN std::uint32_t e4m3_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    std::uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    // Adding 2^20 times the value's own power of two lets the adder round to three bits, to nearest even.
    const auto code = [](float value) {
        const std::uint32_t bits = float_bits(value), magnitude = bits & 0x7fffffffu;
        const std::uint32_t power = max(magnitude & 0x7f800000u, 121u << 23);
        const std::uint32_t sum = float_bits(bits_float(magnitude) + bits_float(power + (20u << 23)));
        return ((sum + (power >> 20) + 56u) & 0xffu) | (bits >> 24 & 0x80u);
    };
    return code(low) | code(high) << 8;
#endif
}

// The low and the high half of a word of two bf16.
TEAM_FN float low_bf16(std::uint32_t pair) {
    return bits_float(pair << 16);
}
TEAM_FN float high_bf16(std::uint32_t pair) {
    return bits_float(pair & 0xffff0000u);
}

// The largest magnitude of this lane's group. All lanes of the warp come here.
TEAM_FN float group_amax(const Vec16& x) {
    std::uint32_t top = 0;
#pragma unroll
    for (const std::uint32_t pair : x.w) top = max(top, max(pair << 16 & 0x7fff0000u, pair & 0x7fff0000u));
#pragma unroll
    for (int step = kGroupLanes / 2; step > 0; step /= 2)
        top = max(top, __shfl_xor_sync(kAllLanes, top, step));
    return bits_float(top);
}

struct GroupScale {
    float forward;
    float inverse;
};

// A NaN or an infinity makes its whole group NaN: no finite scale could say more.
TEAM_FN GroupScale scale_of(float amax, bool rounded) {
    const float most = amax < kSmallestAmax ? kSmallestAmax : amax;
    const float quotient = __fdiv_rn(most, kE4m3Max);
    const float nan = bits_float(kFloatNan);
    if (rounded) {
        // Up to the next power of two: the exponent, one more if any mantissa bit is set.
        const std::uint32_t exponent = (float_bits(quotient) + 0x7fffffu) >> 23;
        return {bits_float((254u - exponent) << 23), is_finite(amax) ? bits_float(exponent << 23) : nan};
    }
    return {__fdiv_rn(kE4m3Max, most), is_finite(amax) ? quotient : nan};
}

TEAM_FN uint2 cast_eight(const Vec16& x, float forward, bool finite) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        pairs[i] = e4m3_pair(__fmul_rn(low_bf16(x.w[i]), forward), __fmul_rn(high_bf16(x.w[i]), forward));
    constexpr std::uint32_t kNans = 0x01010101u * kE4m3Nan;
    return finite ? uint2{pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16} : uint2{kNans, kNans};
}

// A float for each group, or its exponent byte.
TEAM_FN void write_scale(std::byte* scales, int group, float inverse, Format format) {
    if (format == Format::fp8_ue8m0)
        scales[group] = static_cast<std::byte>(ue8m0(inverse));
    else
        reinterpret_cast<float*>(scales)[group] = inverse;
}

// What a warp casts at a time: kCastBatch vectors a lane, so two groups for each. Divisions are long: lane l
// does those of the l-th group and hands the factor on.
constexpr int kWarpGroups = 2 * kCastBatch;
static_assert(kWarpGroups <= kWarpLanes);

TEAM_FN float amax_of_own_group(const float (&amax)[kCastBatch]) {
    float own = 0.0f;
#pragma unroll
    for (int i = 0; i < kCastBatch; ++i) {
        const float of_group = __shfl_sync(kAllLanes, amax[i], lane_of_warp() % 2 * kGroupLanes);
        if (lane_of_warp() / 2 == i) own = of_group;
    }
    return own;
}

// Where in a row: `groups` of it, from `first` on.
struct GroupRange {
    const bf16* row;
    int first;
    int groups;
};

// To `out`, which is shared memory like `scales`.
template <class Team>
TEAM_FN void quantize_groups(
    const Team& team, std::byte* out, std::byte* scales, const GroupRange& range, Format format) {
    const int total = range.groups * kGroupLanes;
    const auto* from = reinterpret_cast<const std::byte*>(range.row + range.first * kGroup);
    for (int start = 0; start < total; start += kCastBatch * team.num_lanes()) {
        Vec16 x[kCastBatch];
        float amax[kCastBatch];
        const auto place = [&](int i) { return start + i * team.num_lanes() + team.lane(); };
#pragma unroll
        for (int i = 0; i < kCastBatch; ++i)
            x[i] = place(i) < total ? load_constant16(from + 16 * place(i)) : Vec16{};
#pragma unroll
        for (int i = 0; i < kCastBatch; ++i) amax[i] = group_amax(x[i]);
        const GroupScale own = scale_of(amax_of_own_group(amax), format != Format::fp8);
        const int own_place = start + lane_of_warp() / 2 * team.num_lanes() + team.warp() * kWarpLanes +
                              lane_of_warp() % 2 * kGroupLanes;
        if (lane_of_warp() < kWarpGroups && own_place < total)
            write_scale(scales, range.first + own_place / kGroupLanes, own.inverse, format);
#pragma unroll
        for (int i = 0; i < kCastBatch; ++i) {
            const float forward = __shfl_sync(kAllLanes, own.forward, 2 * i + lane_of_warp() / kGroupLanes);
            if (place(i) >= total) continue;
            *reinterpret_cast<uint2*>(out + 8 * place(i)) = cast_eight(x[i], forward, is_finite(amax[i]));
        }
    }
}

// The cast row goes to target k, k < num_targets, where that is not null; its scales go to `scales`, in this
// team's memory, padded with zeros to whole vectors.
template <class Team, class Targets>
TEAM_FN void quantize_to(const Team& team,
                         const Targets& targets,
                         int num_targets,
                         std::byte* scales,
                         const bf16* row,
                         int num_groups,
                         Format format,
                         Store) {
    const int chunk = static_cast<int>(team.half_bytes()) / kGroup;
    const int used = format == Format::fp8_ue8m0 ? num_groups : 4 * num_groups;
    for (int first = 0; first < num_groups; first += chunk) {
        const int groups = min(chunk, num_groups - first);
        std::byte* half = open_half(team);
        quantize_groups(team, half, scales, GroupRange{row, first, groups}, format);
        if (first == 0) team.lanes(-used & 15, [&](int i) { scales[used + i] = std::byte{0}; });
        put_half(team, targets, num_targets, static_cast<std::uint64_t>(first * kGroup),
                 static_cast<std::uint32_t>(groups * kGroup));
    }
}

DEEP_LL_TIER_END
