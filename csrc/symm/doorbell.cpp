// doorbell.cpp: futexes on shared memory (never the _PRIVATE kind: the waker is another process).
#include "symm/doorbell.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace deep_ll {

void ring(Doorbell& bell) {
    // seq_cst against the owner's store to `sleeping`: either we see it asleep, or it sees our word before it
    // sleeps.
    const std::uint64_t arrival = bell.arrived.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (bell.sleeping.load(std::memory_order_seq_cst) == 0) return;
    if (arrival < bell.wake_at.load(std::memory_order_relaxed)) return;
    bell.ring.fetch_add(1, std::memory_order_release);
    syscall(SYS_futex, &bell.ring, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void sleep(Doorbell& bell,
           std::uint64_t arrived_before,
           std::uint64_t missing,
           std::int64_t nanoseconds,
           bool (*still_missing)(void*),
           void* context) {
    const std::uint32_t seen = bell.ring.load(std::memory_order_acquire);
    bell.wake_at.store(arrived_before + missing, std::memory_order_relaxed);
    bell.sleeping.store(1, std::memory_order_seq_cst);
    // NOTE [late arrival]: an arrival between the count and the store above saw nobody asleep. It is caught
    // here.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (still_missing(context) && bell.arrived.load(std::memory_order_seq_cst) < arrived_before + missing) {
        const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
        syscall(SYS_futex, &bell.ring, FUTEX_WAIT, seen, &limit, nullptr, 0);
    }
    bell.sleeping.store(0, std::memory_order_relaxed);
}

std::int64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1'000'000'000ll + time.tv_nsec;
}

void yield() {
    sched_yield();
}

}  // namespace deep_ll
