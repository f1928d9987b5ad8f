// layout.hpp: where bytes lie. Sizes and offsets come from the same walk, so they cannot disagree.
#pragma once

#include "core/target.hpp"

namespace deep_ll {

constexpr std::uint64_t kLine = 64;    // a cache line
constexpr std::uint64_t kPage = 4096;  // what the kernel hands out

WORD_FN constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

// Hands out offsets one after the other.
class Arena {
   public:
    WORD_FN constexpr std::uint64_t take(std::uint64_t bytes, std::uint64_t align) {
        const std::uint64_t offset = round_up(used_, align);
        used_ = offset + bytes;
        return offset;
    }
    WORD_FN constexpr std::uint64_t used() const { return used_; }

   private:
    std::uint64_t used_ = 0;
};

}  // namespace deep_ll
