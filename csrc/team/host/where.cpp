// where.cpp: where ranks are, in words: for whoever asks, and for SIGUSR1. Everything here that runs in a
// handler allocates nothing, takes no lock and calls nothing but write() and clock_gettime().
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "symm/doorbell.hpp"
#include "team/host/watch.hpp"

namespace deep_ll {
namespace {

constexpr int kMaxShown = 64;  // buffers of a process
constexpr int kMaxNamed = 16;  // ranks of a line
constexpr std::size_t kLineBytes = 1024;

std::atomic<const Watch*> shown[kMaxShown];
std::atomic<int> num_readers{0};
std::mutex handlers;  // never taken in a handler
int num_shown = 0;
bool is_handled = false;

void tell(int) {
    const int before = errno;
    num_readers.fetch_add(1);
    for (const auto& slot : shown) {
        const Watch* watch = slot.load();
        if (watch == nullptr) continue;
        char line[kLineBytes];
        std::size_t length = watch->describe(line, sizeof line - 1);
        if (length == 0) continue;
        line[length++] = '\n';
        [[maybe_unused]] const auto written = write(STDERR_FILENO, line, length);
    }
    num_readers.fetch_sub(1);
    errno = before;
}

void handle() {
    struct sigaction now{};
    if (sigaction(SIGUSR1, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0) return;
    if (now.sa_handler != SIG_DFL) return;
    struct sigaction ours{};
    ours.sa_handler = tell;
    ours.sa_flags = SA_RESTART;
    sigemptyset(&ours.sa_mask);
    is_handled = sigaction(SIGUSR1, &ours, nullptr) == 0;
}

void restore() {
    struct sigaction now{};
    if (!is_handled || sigaction(SIGUSR1, nullptr, &now) != 0) return;
    is_handled = false;
    if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != tell) return;
    now.sa_handler = SIG_DFL;
    sigaction(SIGUSR1, &now, nullptr);
}

}  // namespace

// What fits into some memory.
class Watch::Text {
   public:
    Text(char* text, std::size_t size) : text_(text), size_(size) {}

    Text& operator<<(const char* words) {
        for (; words != nullptr && *words != 0; ++words) put(*words);
        return *this;
    }
    Text& operator<<(std::int64_t number) {
        if (number < 0) put('-');
        char digits[20];
        int count = 0;
        auto left = static_cast<std::uint64_t>(number < 0 ? -number : number);
        do digits[count++] = static_cast<char>('0' + left % 10);
        while ((left /= 10) != 0);
        while (count > 0) put(digits[--count]);
        return *this;
    }
    // With milliseconds.
    Text& seconds(std::int64_t ns) {
        const std::int64_t ms = ns < 0 ? 0 : ns / 1'000'000;
        *this << ms / 1000 << ".";
        for (std::int64_t unit = 100; unit > 0; unit /= 10) put(static_cast<char>('0' + ms / unit % 10));
        return *this << " s";
    }
    std::size_t length() const { return length_; }

   private:
    void put(char c) {
        if (length_ < size_) text_[length_++] = c;
    }

    char* const text_;
    const std::size_t size_;
    std::size_t length_ = 0;
};

void Watch::tell_missing(Text& text) const {
    const std::uint64_t* first = first_.load(std::memory_order_acquire);
    const auto epoch = awaited_.load(std::memory_order_relaxed);
    if (first == nullptr) return;
    const std::uint32_t kind = kind_.load(std::memory_order_relaxed);
    text << "; for ";
    text.seconds(now_ns() - wait_ns_.load(std::memory_order_relaxed))
        << " it has waited for " << kinds_[kind];
    text << " of epoch " << std::int64_t{epoch} << " from ranks";
    const std::uint8_t* mask = mask_.load(std::memory_order_relaxed);
    const std::uint64_t stride = stride_.load(std::memory_order_relaxed);
    int num_missing = 0;
    for (int rank = 0; rank < num_ranks_; ++rank) {
        const auto* word = reinterpret_cast<const std::uint64_t*>(reinterpret_cast<const std::byte*>(first) +
                                                                  static_cast<std::uint64_t>(rank) * stride);
        const std::uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
        if ((mask != nullptr && mask[rank] != 0) || reached(seen, epoch)) continue;
        if (++num_missing > kMaxNamed) continue;
        text << " " << std::int64_t{rank} << " (at " << std::int64_t{epoch_of(seen)} << ")";
    }
    if (num_missing > kMaxNamed) text << " and " << std::int64_t{num_missing - kMaxNamed} << " more";
    if (num_missing == 0) text << " that have just come";
}

std::size_t Watch::describe(char* to, std::size_t size) const {
    if (getpid() != pid_) return 0;  // of the process that this one was forked from
    Text text(to, size);
    text << "deep_ll: rank " << std::int64_t{rank_} << " of " << std::int64_t{num_ranks_} << ", process "
         << std::int64_t{pid_} << ", buffer #" << std::int64_t{number_} << ": ";
    const char* call = call_.load(std::memory_order_relaxed);
    const std::int64_t since = now_ns() - since_ns_.load(std::memory_order_relaxed);
    if (call == nullptr) return (text << "no call yet").length();
    const bool is_running = is_running_.load(std::memory_order_relaxed);
    text << (is_running ? "in " : "in no call; the last was ") << call << " #"
         << std::int64_t{epoch_.load(std::memory_order_relaxed)};
    if (!is_running) return (text << ", which ended ").seconds(since).operator<<(" ago").length();
    const char* phase = phase_.load(std::memory_order_relaxed);
    if (phase != nullptr) text << ", phase " << phase;
    text << ", since ";
    text.seconds(since);
    tell_missing(text);
    return text.length();
}

void Watch::show(int number) {
    number_ = number;
    const std::scoped_lock held(handlers);
    for (auto& slot : shown) {
        const Watch* none = nullptr;
        if (!slot.compare_exchange_strong(none, this)) continue;
        if (num_shown++ == 0) handle();
        return;
    }
}

void Watch::hide() {
    const std::scoped_lock held(handlers);
    for (auto& slot : shown) {
        if (slot.load() != this) continue;
        slot.store(nullptr);
        if (--num_shown == 0) restore();
        while (num_readers.load() != 0) yield();
        return;
    }
}

}  // namespace deep_ll
