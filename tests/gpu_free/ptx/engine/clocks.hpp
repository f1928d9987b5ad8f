// Vector clocks. All lanes that met at a barrier share one vector (copied when one of them learns more), so
// that a barrier of a thousand lanes costs a thousand steps and not a million.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "words.hpp"

namespace ptx {

struct Clock {
    u32 refs = 0;
    std::vector<u32> seen;    // by thread: what it did up to this time is known
    std::vector<u32> sealed;  // by thread: and went through a proxy fence; empty: nothing did
};

// A counted reference to a clock; const access through `->`, writing through `own()`.
class ClockRef {
   public:
    ClockRef() = default;
    explicit ClockRef(u32 threads) : clock_(new Clock) {
        clock_->refs = 1;
        clock_->seen.assign(threads, 0);
    }
    ClockRef(const ClockRef& other) : clock_(other.clock_) {
        if (clock_ != nullptr) ++clock_->refs;
    }
    ClockRef(ClockRef&& other) noexcept : clock_(std::exchange(other.clock_, nullptr)) {}
    ClockRef& operator=(ClockRef other) noexcept {
        std::swap(clock_, other.clock_);
        return *this;
    }
    ~ClockRef() {
        if (clock_ != nullptr && --clock_->refs == 0) delete clock_;
    }

    const Clock* operator->() const { return clock_; }
    const Clock* get() const { return clock_; }

    Clock& own() {
        if (clock_->refs > 1) {
            Clock* copy = new Clock{1, clock_->seen, clock_->sealed};
            --clock_->refs;
            clock_ = copy;
        }
        return *clock_;
    }

   private:
    Clock* clock_ = nullptr;
};

inline void raise(std::vector<u32>& mine, const std::vector<u32>& other) {
    if (other.empty()) return;
    if (mine.empty()) {
        mine = other;
        return;
    }
    u32* a = mine.data();
    const u32* b = other.data();
    const std::size_t count = mine.size();
    for (std::size_t i = 0; i < count; ++i) a[i] = a[i] < b[i] ? b[i] : a[i];
}

inline void raise_one(std::vector<u32>& mine, u32 thread, u32 time) {
    if (mine[thread] < time) mine[thread] = time;
}

// What one thread knew at one of its own times: enough to be handed on by a release.
struct Knowledge {
    ClockRef others;
    u32 thread = kNobody;
    u32 time = 0;
    u32 sealed = 0;  // of its own time
};

inline void learn(ClockRef& mine, const Knowledge& told) {
    Clock& clock = mine.own();
    if (told.others.get() != mine.get()) {
        raise(clock.seen, told.others->seen);
        raise(clock.sealed, told.others->sealed);
    }
    if (told.thread == kNobody) return;
    raise_one(clock.seen, told.thread, told.time);
    if (told.sealed == 0) return;
    if (clock.sealed.empty()) clock.sealed.assign(clock.seen.size(), 0);
    raise_one(clock.sealed, told.thread, told.sealed);
}

}  // namespace ptx
