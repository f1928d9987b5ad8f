// The floor's kernels with AVX2 and FMA.
//
// What was tried on 2 cores of a Zen 3, one process a core, 1024 tokens of 7168 to 8 rows each, rows in DRAM
// (ms; the stores of dispatch alone take 2.35):
//   cast        one pass a group 0.24 per 128 tokens; two passes (all maxima first: the divisions become
//               vectors and leave the critical path) 0.21; the adder does the rounding (portable.hpp) instead
//               of integer shifts 0.18
//   dispatch    cast a row, then copy it 8 times 2.9; prefetching the next row of x meanwhile 2.7; cast 512
//               bytes and store those to all 8 rows before the next 512, so that the write-combining buffers
//               drain while the core computes, 2.55; both 2.5 at most, 1.5 in the best moment. Within this
//               program, EP8: 2.8 against 3.2 to 3.6. Blocks of 128 and 1792 bytes are slower, clzero before
//               plain stores takes 100.
//   copy        streaming 5.4; prefetch 512 ahead 5.3, other distances and hints no better; memcpy, rep movsb
//               and plain 8.3 to 8.7. A source that is not aligned to 32 bytes costs 13 % at EP2.
//   reduce      all rows side by side, a line each: 3.6; prefetch 128 ahead 3.5, further ahead 3.6 to 4; two
//               lines each 3.6; row after row into sums kept in L1 4.6 to 7; plain stores of the result 3.9
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace avx2 {

inline __m256i load(const void* at) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

template <bool kStream>
void store(void* at, __m256i value) {
    if constexpr (kStream) {
        _mm256_stream_si256(static_cast<__m256i*>(at), value);
    } else {
        _mm256_store_si256(static_cast<__m256i*>(at), value);
    }
}

inline void prefetch(const void* at) {
    _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0);
}

inline __m256i absolute(__m256i bf16) {
    return _mm256_and_si256(bf16, _mm256_set1_epi16(0x7fff));
}
inline __m256 even_floats(__m256i bf16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(bf16, 16));
}
inline __m256 odd_floats(__m256i bf16) {
    return _mm256_castsi256_ps(_mm256_and_si256(bf16, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

// The magnitudes of bf16 order like their bits, so the maximum needs no float at all.
inline float group_amax(const uint16_t* x) {
    __m256i most = absolute(load(x));
    for (int i = 16; i < 128; i += 16) most = _mm256_max_epu16(most, absolute(load(x + i)));
    const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
    const uint32_t bits = ~static_cast<uint32_t>(_mm_cvtsi128_si32(least)) & 0xffff;
    return std::max(std::bit_cast<float>(bits << 16), 1e-4f);
}

// The low byte of each lane is the code less 56; the rest is rubbish.
inline __m256i round_to_e4m3(__m256 magnitude) {
    const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(magnitude), _mm256_set1_epi32(0x7f800000));
    const __m256i power = _mm256_max_epi32(exponent, _mm256_set1_epi32(121 << 23));
    const __m256i magic = _mm256_add_epi32(power, _mm256_set1_epi32(20 << 23));
    const __m256 sum = _mm256_add_ps(magnitude, _mm256_castsi256_ps(magic));
    return _mm256_add_epi32(_mm256_castps_si256(sum), _mm256_srli_epi32(power, 20));
}

inline __m256i cast_16(__m256i bf16, __m256 scale) {
    const __m256i magnitude = absolute(bf16);
    const __m256i even = round_to_e4m3(_mm256_mul_ps(even_floats(magnitude), scale));
    const __m256i odd = round_to_e4m3(_mm256_mul_ps(odd_floats(magnitude), scale));
    const __m256i both = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
    return _mm256_and_si256(both, _mm256_set1_epi16(0xff));
}

inline __m256i cast_32(const uint16_t* x, __m256 scale) {
    const __m256i first = load(x), second = load(x + 16);
    const __m256i codes = _mm256_packus_epi16(cast_16(first, scale), cast_16(second, scale));
    const __m256i tops = _mm256_packus_epi16(_mm256_srli_epi16(first, 8), _mm256_srli_epi16(second, 8));
    const __m256i signs = _mm256_and_si256(tops, _mm256_set1_epi8(static_cast<char>(0x80)));
    const __m256i bytes = _mm256_or_si256(_mm256_add_epi8(codes, _mm256_set1_epi8(56)), signs);
    return _mm256_permute4x64_epi64(bytes, 0xd8);  // packing works within 128-bit halves
}

// A whole number of 64-byte lines; both ends of target 32-byte aligned.
template <bool kStream>
void copy_row(void* target, const void* source, size_t bytes) {
    auto* to = static_cast<char*>(target);
    auto* from = static_cast<const char*>(source);
    for (size_t i = 0; i < bytes; i += 64) {
        prefetch(from + i + 512);
        const __m256i low = load(from + i), high = load(from + i + 32);
        store<kStream>(to + i, low);
        store<kStream>(to + i + 32, high);
    }
}

inline constexpr int kBlock = 512;  // bytes written to one row before the next row's turn

template <bool kStream>
void fan_row(void* const* targets, int num_targets, const void* source, size_t bytes) {
    auto* from = static_cast<const char*>(source);
    for (size_t first = 0; first < bytes; first += kBlock) {
        const size_t size = std::min<size_t>(kBlock, bytes - first);
        for (size_t i = 0; i < size; i += 64) prefetch(from + bytes + first + i);  // the next row of x
        for (int k = 0; k < num_targets; ++k) {
            auto* to = static_cast<char*>(targets[k]) + first;
            for (size_t i = 0; i < size; i += 32) store<kStream>(to + i, load(from + first + i));
        }
    }
}

inline void row_scales(float* inverse, float* scale, const uint16_t* x, int num_groups) {
    const __m256 limit = _mm256_set1_ps(448.0f);
    for (int g = 0; g < num_groups; ++g) scale[g] = group_amax(x + 128 * g);
    for (int g = 0; g < num_groups; g += 8) {
        const __m256 amax = _mm256_loadu_ps(scale + g);
        _mm256_storeu_ps(inverse + g, _mm256_div_ps(amax, limit));
        _mm256_storeu_ps(scale + g, _mm256_div_ps(limit, amax));
    }
}

// `scales` holds a multiple of 8 floats. hidden is at most 8192.
template <bool kStream>
void cast_fan(void* const* targets, int num_targets, float* scales, const uint16_t* x, int hidden) {
    alignas(64) float multiplier[64] = {};
    alignas(64) uint8_t block[kBlock];
    row_scales(scales, multiplier, x, hidden / 128);
    for (int first = 0; first < hidden; first += kBlock) {
        const int size = std::min(kBlock, hidden - first);
        for (int i = 0; i < 2 * size; i += 64)
            prefetch(reinterpret_cast<const char*>(x + hidden + first) + i);
        for (int i = 0; i < size; i += 32) {
            const __m256 scale = _mm256_broadcast_ss(multiplier + (first + i) / 128);
            store<false>(block + i, cast_32(x + first + i, scale));
        }
        for (int k = 0; k < num_targets; ++k) {
            auto* to = static_cast<uint8_t*>(targets[k]) + first;
            for (int i = 0; i < size; i += 32) store<kStream>(to + i, load(block + i));
        }
    }
}

inline __m256i rounded(__m256 sum) {
    const __m256i bits = _mm256_castps_si256(sum);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

inline __m256i to_bf16(__m256 even, __m256 odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(rounded(even), 16), rounded(odd), 0xaa);
}

template <bool kStream>
void reduce_rows(uint16_t* out, const uint16_t* const* rows, const float* weights, int num_rows, int hidden) {
    for (int i = 0; i < hidden; i += 32) {
        __m256 even[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, odd[2] = {even[0], even[0]};
        for (int k = 0; k < num_rows; ++k) {
            const __m256 weight = _mm256_broadcast_ss(weights + k);
            prefetch(rows[k] + i + 64);
            for (int half = 0; half < 2; ++half) {
                const __m256i row = load(rows[k] + i + 16 * half);
                even[half] = _mm256_fmadd_ps(even_floats(row), weight, even[half]);
                odd[half] = _mm256_fmadd_ps(odd_floats(row), weight, odd[half]);
            }
        }
        store<kStream>(out + i, to_bf16(even[0], odd[0]));
        store<kStream>(out + i + 16, to_bf16(even[1], odd[1]));
    }
}

inline void store_fence() {
    _mm_sfence();
}
inline constexpr const char* kName = "avx2";

}  // namespace avx2
