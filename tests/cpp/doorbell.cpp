// doorbell.cpp: an arrival is put into each moment between "it is missing" and sleep. None may be slept
// through.
#include "doorbell.hpp"

#include <cstdint>
#include <cstdlib>
#include <thread>

#include "fail.hpp"
#include "naps.hpp"
#include "team/host/signal.hpp"

namespace {

using namespace deep_ll;

enum class Moment { never, while_counting, while_marked_asleep, before_the_kernel };

bool not_interrupted() {
    return false;
}

// Stands in for Arrivals: one word is missing, and comes at `moment`.
struct Waiting {
    Doorbell& bell;
    Moment moment;
    mutable bool here = false;

    void arrive_at(Moment now) const {
        if (now != moment || here) return;
        here = true;
        ring(bell);
    }
    int dead() const { return -1; }
    template <class F>
    void each_missing(F f) const {
        if (!here) f(0);
    }
    std::uint64_t count_missing() const {
        const std::uint64_t missing = here ? 0 : 1;
        arrive_at(Moment::while_counting);
        return missing;
    }
    bool all() const {
        const bool all_here = here;
        arrive_at(Moment::while_marked_asleep);
        return all_here;
    }
};

struct Sleeper {
    HeapHeader* header = new HeapHeader{};
    std::uint64_t base = reinterpret_cast<std::uint64_t>(header);
    PeerMap peers{&base, 0, 1, nullptr, nullptr, nullptr, 0};
    WaitReport report{};

    Sleeper() = default;
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    ~Sleeper() { delete header; }

    Doorbell& bell() const { return header->doorbell; }
    bool nap_once(Moment moment, Vigil& vigil) {
        Waiting waiting{bell(), moment};
        before_next_sleep(
            [](void* context) { static_cast<Waiting*>(context)->arrive_at(Moment::before_the_kernel); },
            &waiting);
        const HostTeam team(HostTeamState{});
        return nap(team, waiting, peers, vigil, {0, 0, 0, not_interrupted}, report);
    }
};

void arrives_before_sleep(Moment moment) {
    Sleeper sleeper;
    const Naps before = naps();
    Vigil vigil(sleeper.peers, 0);
    if (!sleeper.nap_once(moment, vigil)) fail("doorbell: gave up without a deadline");
    if (naps().timeouts != before.timeouts)
        fail("doorbell: slept through an arrival at moment %d", static_cast<int>(moment));
}

// Two are missing: the first arrival must not wake, the second must.
void wakes_at_the_last_arrival() {
    Sleeper sleeper;
    Doorbell& bell = sleeper.bell();
    const Naps before = naps();
    before_next_sleep(nullptr, nullptr);
    std::thread peer([&] {
        for (int i = 0; bell.sleeping.load() == 0; ++i) {
            if (i == 3000) fail("doorbell: sleeps without a mark");
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        ring(bell);
        if (naps().wakes != before.wakes) fail("doorbell: woken by the first of two arrivals");
        ring(bell);
    });
    bool (*const missing)(void*) = [](void*) { return true; };
    sleep(bell, 0, 2, 3'000'000'000, missing, nullptr);
    peer.join();
    if (naps().timeouts != before.timeouts) fail("doorbell: not woken by the last arrival");
    if (naps().wakes != before.wakes + 1)
        fail("doorbell: woken %d times", static_cast<int>(naps().wakes - before.wakes));
}

void keeps_the_deadline() {
    Sleeper sleeper;
    constexpr std::int64_t kTimeoutNs = 30'000'000;
    const std::int64_t deadline = now_ns() + kTimeoutNs;
    Vigil vigil(sleeper.peers, kTimeoutNs);
    while (sleeper.nap_once(Moment::never, vigil)) {
    }
    if (sleeper.report.outcome != WaitOutcome::timeout)
        fail("doorbell: gave up for another reason than time");
    if (now_ns() < deadline)
        fail("doorbell: gave up %lld ns early", static_cast<long long>(deadline - now_ns()));
}

}  // namespace

void run_doorbell() {
    arrives_before_sleep(Moment::while_counting);
    arrives_before_sleep(Moment::while_marked_asleep);
    arrives_before_sleep(Moment::before_the_kernel);
    wakes_at_the_last_arrival();
    keeps_the_deadline();
}
