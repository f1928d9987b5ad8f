// Small float formats: f16, bf16, e4m3, e5m2, rounded once, from double.
#pragma once

#include <bit>
#include <cmath>

#include "words.hpp"

namespace ptx {

struct Format {
    int exponent_bits, mantissa_bits;
    bool infinite;  // has infinities; e4m3 has none
    u32 nan;
};

inline constexpr Format kF16{5, 10, true, 0x7fff};
inline constexpr Format kBf16{8, 7, true, 0x7fff};
inline constexpr Format kE4m3{4, 3, false, 0x7f};
inline constexpr Format kE5m2{5, 2, true, 0x7f};

// Rounding modes, as decode.py numbers them.
enum Rounding : int { kNearest, kZero, kDown, kUp };

inline double widen(const Format& format, u32 bits) {
    const int bias = (1 << (format.exponent_bits - 1)) - 1;
    const u32 top = (1u << format.exponent_bits) - 1;
    const u32 mantissa = bits & ((1u << format.mantissa_bits) - 1);
    const u32 exponent = bits >> format.mantissa_bits & top;
    const double sign = bits >> (format.exponent_bits + format.mantissa_bits) & 1 ? -1.0 : 1.0;
    if (exponent == top && format.infinite) return mantissa == 0 ? sign * INFINITY : NAN;
    if (!format.infinite && (bits & 0x7f) == 0x7f) return NAN;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - format.mantissa_bits);
    return sign * std::ldexp(mantissa + (1u << format.mantissa_bits),
                             static_cast<int>(exponent) - bias - format.mantissa_bits);
}

inline double rounded(double value, int mode) {
    switch (mode) {
        case kZero:
            return std::trunc(value);
        case kDown:
            return std::floor(value);
        case kUp:
            return std::ceil(value);
        default:
            return std::nearbyint(value);
    }
}

// `saturate`: what is too large becomes the largest number.
inline u32 narrow(const Format& format, double value, int mode, bool saturate) {
    if (std::isnan(value)) return format.nan;
    const int bias = (1 << (format.exponent_bits - 1)) - 1;
    const u32 sign = u32{std::signbit(value)} << (format.exponent_bits + format.mantissa_bits);
    const u32 infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
    const u32 largest = format.infinite ? infinity - 1 : 0x7e;
    const u32 over = format.infinite ? infinity : format.nan;
    if (value == 0) return sign;
    if (std::isinf(value)) return sign | (saturate ? largest : over);
    int exponent = std::ilogb(value);
    exponent = exponent < 1 - bias ? 1 - bias : exponent;
    // In units of the last place of this exponent; a carry moves into the exponent by itself.
    const double units = rounded(std::ldexp(value, format.mantissa_bits - exponent), mode);
    const double whole = std::fabs(units);
    if (whole == 0) return sign;
    if (exponent + bias > (1 << format.exponent_bits)) return sign | (saturate ? largest : over);
    const u32 bits =
        (static_cast<u32>(exponent + bias - 1) << format.mantissa_bits) + static_cast<u32>(whole);
    if (bits <= largest) return sign | bits;
    const bool towards_zero = mode == kZero || (mode == kDown && sign == 0) || (mode == kUp && sign != 0);
    return sign | (saturate || towards_zero ? largest : over);
}

// a * b + c of narrow numbers with one rounding left to do: the last bit says whether anything was lost.
inline double fma_odd(double a, double b, double c) {
    const double product = a * b;  // exact: narrow mantissas
    const double sum = product + c;
    if (!std::isfinite(sum)) return sum;
    const double part = sum - product;
    const double lost = (product - (sum - part)) + (c - part);
    const u64 bits = std::bit_cast<u64>(sum);
    if (lost == 0 || (bits & 1) != 0) return sum;
    const bool away = (lost > 0) == (sum > 0);
    return std::bit_cast<double>(away ? bits + 1 : bits - 1);
}

}  // namespace ptx
