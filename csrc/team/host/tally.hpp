// tally.hpp: how often and how long somebody was waited for. Host only.
#pragma once

#include <bit>
#include <cstdint>

#include "core/target.hpp"

namespace deep_ll {

// Times are counted in classes: eight an octave, from 64 ns to two minutes.
struct Tally {
    static constexpr int kUnitShift = 6, kPerOctave = 8, kClasses = 240;

    std::uint64_t count;
    std::int64_t total_ns;
    std::int64_t max_ns;
    std::uint32_t classes[kClasses];

    static int class_of(std::int64_t ns) {
        const auto units = static_cast<std::uint64_t>(ns) >> kUnitShift;
        if (units < kPerOctave) return static_cast<int>(units);
        const int octave = static_cast<int>(std::bit_width(units)) - 4;
        const int found = kPerOctave * octave + static_cast<int>(units >> octave);
        return found < kClasses ? found : kClasses - 1;
    }
    // The middle of a class.
    static std::int64_t middle_ns(int index) {
        constexpr std::int64_t kHalf = 1 << (kUnitShift - 1);
        if (index < kPerOctave) return (2 * index + 1) * kHalf;
        const int octave = index / kPerOctave - 1;
        return ((2 * (kPerOctave + index % kPerOctave) + 1) * kHalf) << octave;
    }

    void add(std::int64_t ns) {
        ++count;
        total_ns += ns;
        if (ns > max_ns) max_ns = ns;
        ++classes[class_of(ns)];
    }
};

}  // namespace deep_ll
