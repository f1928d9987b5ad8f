// naps.hpp: what the ranks' sleeping looked like to the kernel. Linked with --wrap=syscall.
#pragma once

#include <cstdint>

struct Naps {
    std::uint64_t sleeps;    // futex waits
    std::uint64_t timeouts;  // of them ended by the time limit
    std::uint64_t lost;      // of those: the arrival that must wake was there, and nobody called
    std::uint64_t wakes;     // calls to a sleeper
};

Naps naps();

// This thread does nothing more. Whoever then waits in vain gives its memory to others: what it wrote comes
// before that, as what a process wrote comes before its end is noticed.
void leave();

// Runs once, in the sleeper, when nothing but the kernel can still keep it awake.
void before_next_sleep(void (*run)(void*), void* context);
