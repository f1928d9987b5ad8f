// logfmt.hpp: LogFMT, rows of bf16 in 10 bits a value: what its numbers are and where its bytes lie. The
// arithmetic is in team/: additions, FMAs and integers alone, so it gives the same bits on every machine.
//
// In a group of 128 channels the logarithms of the magnitudes are rounded to 511 even steps. Code c > 0 is
// 2^(low + step * (c - 1)), code 0 is zero; a sign goes with each.
#pragma once

#include "core/layout.hpp"
#include "core/numeric.hpp"

namespace deep_ll {

// What a group's codes mean. If `low` is NaN, all of them are.
struct LogScale {
    float low;
    float step;
};

// A group: its scale, the low eight bits of each code, then for each value two bits: the ninth bit of the
// code, and above it the sign.
struct LogGroup {
    static constexpr int kCodes = sizeof(LogScale);
    static constexpr int kPairs = kCodes + kGroup;
    static constexpr int kBytes = kPairs + kGroup / 4;
};
static_assert(LogGroup::kBytes == 168);

// Groups follow each other; a row ends on a whole vector of 16 bytes.
WORD_FN std::uint64_t logfmt_bytes(int num_groups) {
    return round_up(static_cast<std::uint64_t>(num_groups) * LogGroup::kBytes, 16);
}

constexpr float kLogSteps = 510.0f;  // between a group's smallest and largest magnitude
constexpr float kPerStep = 1.0f / kLogSteps;
constexpr float kLogRange = 16.0f;                 // magnitudes below 2^-16 of the largest one count as that
constexpr std::uint16_t kSmallestNormal = 0x0080;  // as bits of a bf16; what is smaller counts as zero
constexpr std::uint32_t kOne = 0x3f800000;

// Adding 2^23 to a float below it, or 1.5 * 2^23 to one of either sign, rounds it to an integer, to nearest
// even, which is then in the low bits.
constexpr float kRoundPositive = 8388608.0f;
constexpr float kRoundAny = 12582912.0f;

// log2(1 + f) = f q(f) for 0 <= f < 1, 2^r = 1 + r p(r) for |r| <= 1/2, both within 1e-5. Lowest first.
constexpr int kLog2Terms = 6, kExp2Terms = 4;
WORD_FN constexpr float log2_term(int i) {
    constexpr float terms[kLog2Terms] = {0x1.7153cap+0f,  -0x1.70e7f8p-1f, 0x1.e132eap-2f,
                                         -0x1.387204p-2f, 0x1.2ff356p-3f,  -0x1.21e3c4p-5f};
    return terms[i];
}
WORD_FN constexpr float exp2_term(int i) {
    constexpr float terms[kExp2Terms] = {0x1.62e2d2p-1f, 0x1.ebf958p-3f, 0x1.c96d78p-5f, 0x1.3d1088p-7f};
    return terms[i];
}

}  // namespace deep_ll
