// The floor's kernels in plain C++: the only ones on CPUs without AVX2, and everywhere the
// reference that the vector kernels are checked against before anything is timed.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace portable {

inline float from_bf16(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t to_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Adding 2^20 times the value's power of two (at least 2^-6, where e4m3's denormals begin) makes the
// float adder itself round to e4m3's three bits; the sum's low bits then are the code's low bits.
inline uint8_t to_e4m3(float value) {
    const float magnitude = std::fabs(value);
    const uint32_t power = std::max(std::bit_cast<uint32_t>(magnitude) & 0x7f800000u, 121u << 23);
    const float sum = magnitude + std::bit_cast<float>(power + (20u << 23));
    const uint32_t code = std::bit_cast<uint32_t>(sum) + (power >> 20) + 56;
    return static_cast<uint8_t>((code & 0x7f) | (std::signbit(value) ? 0x80 : 0));
}

template <bool kStream>
void copy_row(void* target, const void* source, size_t bytes) {
    std::memcpy(target, source, bytes);
}

template <bool kStream>
void fan_row(void* const* targets, int num_targets, const void* source, size_t bytes) {
    for (int k = 0; k < num_targets; ++k) std::memcpy(targets[k], source, bytes);
}

template <bool kStream>
void cast_fan(void* const* targets, int num_targets, float* scales, const uint16_t* x, int hidden) {
    for (int first = 0; first < hidden; first += 128) {
        float amax = 1e-4f;
        for (int i = 0; i < 128; ++i) amax = std::max(amax, std::fabs(from_bf16(x[first + i])));
        const float scale = 448.0f / amax;
        scales[first / 128] = amax / 448.0f;
        uint8_t codes[128];
        for (int i = 0; i < 128; ++i) codes[i] = to_e4m3(from_bf16(x[first + i]) * scale);
        for (int k = 0; k < num_targets; ++k) {
            std::memcpy(static_cast<uint8_t*>(targets[k]) + first, codes, sizeof codes);
        }
    }
}

template <bool kStream>
void reduce_rows(uint16_t* out, const uint16_t* const* rows, const float* weights, int num_rows, int hidden) {
    for (int i = 0; i < hidden; ++i) {
        float sum = 0;
        for (int k = 0; k < num_rows; ++k) sum = std::fma(weights[k], from_bf16(rows[k][i]), sum);
        out[i] = to_bf16(sum);
    }
}

inline void store_fence() {}
inline constexpr const char* kName = "portable";

}  // namespace portable
