// doorbell.hpp: sleeping until peers have published, and waking a sleeper. Host only.
#pragma once

#include "symm/heap.hpp"

namespace deep_ll {

// After a publication into `bell`'s heap: counts the arrival and wakes the owner if it was the last it sleeps
// for.
void ring(Doorbell& bell);

// Sleeps until about `missing` more arrivals, `nanoseconds` at most. `still_missing(context)` is asked once
// more after the owner is marked as sleeping: false means no sleep. May return early; the caller looks at the
// words.
void sleep(Doorbell& bell,
           std::uint64_t arrived_before,
           std::uint64_t missing,
           std::int64_t nanoseconds,
           bool (*still_missing)(void*),
           void* context);

// CLOCK_MONOTONIC.
std::int64_t now_ns();

// Gives the core to another rank.
void yield();

}  // namespace deep_ll
