// attendant.hpp: the thread that lets arrivals land while its rank does something else. It keeps away as long
// as callers look after arrivals themselves: two that do are slower than one.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace deep_ll {

class Attendant {
   public:
    // `look()` lets arrivals land; true: there is nothing more, and `event_fd` will become readable when
    // there is.
    Attendant(std::function<bool()> look, int event_fd);
    ~Attendant();
    Attendant(const Attendant&) = delete;
    Attendant& operator=(const Attendant&) = delete;

    // A caller looks after arrivals, now and probably soon again.
    void stand_by() {
        if (attended_.load(std::memory_order_relaxed) == 0) attended_.store(1, std::memory_order_relaxed);
    }
    // No caller does from now on.
    void take_over();

   private:
    void run();
    void nap(std::uint32_t seen);
    void await_event();

    std::function<bool()> look_;
    int event_fd_;
    int stop_fd_;
    std::atomic<std::uint32_t> attended_{0};
    std::atomic<std::uint32_t> takeovers_{0};  // a futex
    std::atomic<std::uint32_t> napping_{0};
    std::atomic<bool> stopped_{false};
    std::thread thread_;
};

}  // namespace deep_ll
