// attendant.cpp: naps while callers are at it, sleeps on UCX's descriptor while there is nothing to do.
#include "symm/ucx/attendant.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <utility>

namespace deep_ll {
namespace {

constexpr long kNapNs = 2'000'000;    // how long after its last look a caller is believed to come back
constexpr int kLongestSleepMs = 100;  // whatever the descriptor says

long futex(std::atomic<std::uint32_t>& word, int what, std::uint32_t value, const timespec* limit) {
    return syscall(SYS_futex, &word, what | FUTEX_PRIVATE_FLAG, value, limit, nullptr, 0);
}

}  // namespace

Attendant::Attendant(std::function<bool()> look, int event_fd)
    : look_(std::move(look)), event_fd_(event_fd), stop_fd_(eventfd(0, EFD_CLOEXEC)) {
    // Signals are for the threads of the program.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread_.native_handle(), "deep_ll-link");
}

Attendant::~Attendant() {
    stopped_.store(true);
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof one);
    take_over();
    thread_.join();
    close(stop_fd_);
}

void Attendant::take_over() {
    attended_.store(0, std::memory_order_relaxed);
    // seq_cst against nap(): either we see it nap, or it sees the new count.
    takeovers_.fetch_add(1, std::memory_order_seq_cst);
    if (napping_.load(std::memory_order_seq_cst) != 0) futex(takeovers_, FUTEX_WAKE, 1, nullptr);
}

void Attendant::run() {
    while (!stopped_.load()) {
        const std::uint32_t seen = takeovers_.load(std::memory_order_acquire);
        if (attended_.exchange(0, std::memory_order_relaxed) != 0) {
            nap(seen);
        } else if (look_()) {
            await_event();
        }
    }
}

void Attendant::nap(std::uint32_t seen) {
    const timespec limit{0, kNapNs};
    napping_.store(1, std::memory_order_seq_cst);
    futex(takeovers_, FUTEX_WAIT, seen, &limit);
    napping_.store(0, std::memory_order_relaxed);
}

void Attendant::await_event() {
    pollfd fds[] = {{event_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    poll(fds, 2, kLongestSleepMs);
}

}  // namespace deep_ll
