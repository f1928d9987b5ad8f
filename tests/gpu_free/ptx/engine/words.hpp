// Words that every part of the engine uses: short integer names, errors, random numbers.
#pragma once

#include <cstdint>
#include <string>

namespace ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

inline constexpr u32 kLanes = 32;
inline constexpr u32 kAll = 0xffffffffu;
inline constexpr u32 kNobody = 0xffffffu;

// What a run can end with; the numbers are those of machine.py.
enum class Kind : int { none, race, hang, fault, unknown };

struct Error {
    Kind kind;
    std::string message;
};

// Small and fast; a seed gives the same schedule everywhere, which <random>'s distributions do not promise.
class Random {
   public:
    explicit Random(u64 seed) : state_(seed * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull) {}

    u32 next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return static_cast<u32>((state_ * 0x2545f4914f6cdd1dull) >> 32);
    }

    u32 below(u32 bound) { return static_cast<u32>((u64{next()} * bound) >> 32); }

   private:
    u64 state_;
};

template <class F>
inline void each(u32 mask, F f) {
    if (mask == kAll) {
        for (u32 lane = 0; lane < kLanes; ++lane) f(lane);
        return;
    }
    for (; mask != 0; mask &= mask - 1) f(static_cast<u32>(__builtin_ctz(mask)));
}

}  // namespace ptx
