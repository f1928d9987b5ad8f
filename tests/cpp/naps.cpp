// naps.cpp: stands between doorbell.cpp and the kernel.
#include "naps.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <cerrno>
#include <cstdarg>
#include <ctime>
#include <utility>

#include "symm/doorbell.hpp"

extern "C" long __real_syscall(long number, ...);
extern "C" long __wrap_syscall(long number, ...);

namespace {

std::atomic<std::uint64_t> sleeps, timeouts, lost, wakes, left;
void (*interlude)(void*) = nullptr;
void* interlude_context = nullptr;

// NOTE [lost wakes]: once the arrival number `wake_at` is counted, either its sender saw the sleeper and will
// change `ring`, or the sleeper saw the arrival and did not sleep. A sleeper that timed out, though the
// arrival is there and `ring` stays as it was, was forgotten. That does not depend on how fast anybody is.
bool was_forgotten(const deep_ll::Doorbell& bell, std::uint32_t seen) {
    if (bell.arrived.load() < bell.wake_at.load()) return false;
    const timespec moment{0, 1'000'000};
    for (int i = 0; i < 2000 && bell.ring.load() == seen; ++i) nanosleep(&moment, nullptr);
    return bell.ring.load() == seen;
}

}  // namespace

long __wrap_syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    void* word = va_arg(list, void*);
    const int operation = va_arg(list, int);
    const auto value = static_cast<std::uint32_t>(va_arg(list, int));
    void* limit = va_arg(list, void*);
    va_end(list);
    sleeps += operation == FUTEX_WAIT;
    wakes += operation == FUTEX_WAKE;
    if (operation == FUTEX_WAIT && interlude != nullptr) std::exchange(interlude, nullptr)(interlude_context);
    const long result = __real_syscall(number, word, operation, value, limit, nullptr, 0);
    if (operation != FUTEX_WAIT || result == 0 || errno != ETIMEDOUT) return result;
    ++timeouts;
    left.load(std::memory_order_acquire);
    lost += was_forgotten(*static_cast<deep_ll::Doorbell*>(word), value);
    return result;
}

Naps naps() {
    return {sleeps, timeouts, lost, wakes};
}

void leave() {
    left.fetch_add(1, std::memory_order_release);
}

void before_next_sleep(void (*run)(void*), void* context) {
    interlude = run;
    interlude_context = context;
}
