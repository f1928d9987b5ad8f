// watch.cpp: see watch.hpp. What a handler reads is atomic, but needs no order: it is told in words.
#include "team/host/watch.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "symm/doorbell.hpp"

namespace deep_ll {
namespace {

constexpr auto kPlain = std::memory_order_relaxed;

}  // namespace

void Watch::Free::operator()(Tally* tallies) const {
    std::free(tallies);
}

Watch::Watch(int rank, int num_ranks, Kinds kinds)
    : rank_(rank),
      num_ranks_(num_ranks),
      pid_(getpid()),
      kinds_(kinds),
      tallies_(static_cast<Tally*>(std::calloc(static_cast<std::size_t>(kKinds * num_ranks), sizeof(Tally)))),
      bytes_(static_cast<std::size_t>(num_ranks)) {
    if (tallies_ == nullptr) throw std::bad_alloc();
}

Watch::~Watch() {
    hide();
}

void Watch::begin(const char* call, std::uint32_t epoch) {
    epoch_.store(epoch, kPlain);
    since_ns_.store(now_ns(), kPlain);
    call_.store(call, kPlain);
    is_running_.store(true, kPlain);
}

void Watch::end() {
    const std::int64_t start_ns = since_ns_.load(kPlain), end_ns = now_ns();
    is_running_.store(false, kPlain);
    since_ns_.store(end_ns, kPlain);
    const char* call = call_.load(kPlain);
    if (!events_.empty()) keep({call, call, start_ns, end_ns - start_ns, epoch_.load(kPlain), -1});
}

void Watch::enter(const char* phase) {
    phase_.store(phase, kPlain);
    if (!events_.empty()) phase_ns_ = now_ns();
}

void Watch::leave() {
    if (!events_.empty())
        keep({phase_.load(kPlain), call_.load(kPlain), phase_ns_, now_ns() - phase_ns_, epoch_.load(kPlain),
              -1});
    phase_.store(nullptr, kPlain);
}

void Watch::begin_wait(const Words& words, const Awaited& awaited, std::int64_t now_ns) {
    stride_.store(words.stride, kPlain);
    mask_.store(words.mask, kPlain);
    kind_.store(awaited.phase, kPlain);
    awaited_.store(awaited.epoch, kPlain);
    wait_ns_.store(now_ns, kPlain);
    first_.store(words.first, std::memory_order_release);
}

void Watch::end_wait(std::uint32_t kind) {
    first_.store(nullptr, std::memory_order_release);
    ++num_waits_[kind];
}

void Watch::waited(std::uint32_t kind, int peer, std::int64_t start_ns, std::int64_t cost_ns) {
    tallies_[static_cast<int>(kind) * num_ranks_ + peer].add(cost_ns);
    if (!events_.empty())
        keep({kinds_[kind], call_.load(kPlain), start_ns, cost_ns, epoch_.load(kPlain), peer});
}

void Watch::record(std::size_t most) {
    events_.assign(most, Event{});
    num_events_ = 0;
}

void Watch::keep(const Event& event) {
    events_[num_events_++ % events_.size()] = event;
}

std::vector<Watch::Event> Watch::events() const {
    const std::size_t kept = std::min(num_events_, events_.size());
    std::vector<Event> ordered;
    ordered.reserve(kept);
    for (std::size_t i = num_events_ - kept; i < num_events_; ++i)
        ordered.push_back(events_[i % events_.size()]);
    return ordered;
}

}  // namespace deep_ll
