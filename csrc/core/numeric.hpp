// numeric.hpp: bf16, e4m3 and ue8m0 as bits, and the scales between them.
// The same bits on every machine: integers and single IEEE operations only. Vector forms of these live in
// team/.
#pragma once

#include "core/target.hpp"

namespace deep_ll {

struct bf16 {
    std::uint16_t bits;
};

// How a dispatched row travels.
enum class Format : std::uint32_t {
    bf16 = 0,
    fp8 = 1,          // e4m3, float32 scales
    fp8_rounded = 2,  // e4m3, float32 scales that are powers of two
    fp8_ue8m0 = 3,    // e4m3, the exponents of those scales, one byte each
};

constexpr int kGroup = 128;             // channels that share one scale
constexpr float kE4m3Max = 448.0f;      // largest finite e4m3
constexpr float kSmallestAmax = 1e-4f;  // a group of zeros still gets a finite scale
constexpr std::uint8_t kE4m3Nan = 0x7f;
constexpr std::uint32_t kFloatNan = 0x7fffffff;
constexpr std::uint32_t kFloatInf = 0x7f800000;

WORD_FN std::uint32_t float_bits(float value) {
    return __builtin_bit_cast(std::uint32_t, value);
}
WORD_FN float bits_float(std::uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

WORD_FN float widen(bf16 value) {
    return bits_float(static_cast<std::uint32_t>(value.bits) << 16);
}

// Round to nearest even; every NaN becomes 0x7fff, as cvt.rn.bf16.f32 does.
WORD_FN bf16 narrow(float value) {
    const std::uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > kFloatInf) return {0x7fff};
    return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

WORD_FN bool is_finite(float amax) {
    return float_bits(amax) < kFloatInf;
}

WORD_FN std::uint8_t ue8m0(float inverse) {
    return static_cast<std::uint8_t>(float_bits(inverse) >> 23);
}

}  // namespace deep_ll
