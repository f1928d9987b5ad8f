// twin.cpp: runs a launch on the host. The parameters of a kernel are the same struct on both machines, so
// with addresses of host memory in it the CPU's build of the same phases can stand in for the GPU's.
#include <array>
#include <cstring>

#include "ep/accept.hpp"
#include "ep/launch.hpp"
#include "ep/phases.hpp"
#include "team/host/league.hpp"
#include "team/host/logfmt.hpp"
#include "team/host/quantize.hpp"
#include "team/host/rearrange.hpp"
#include "team/host/reduce.hpp"
#include "team/host/signal.hpp"

namespace {

using namespace deep_ll;

constexpr int kNumTeams = 1;
constexpr int kPauses = 50;

bool never() {
    return false;
}

bool run(League& league, const DispatchLaunch& launch) {
    bool done = true;
    if (launch.halves & kSend) {
        accept(league, launch.args, launch.choices, launch.args.num_tokens, launch.args.ledger.experts);
        done = dispatch_send(league, launch.args);
    }
    return done && ((launch.halves & kReceive) == 0 || dispatch_receive(league, launch.args));
}

bool run(League& league, const CombineLaunch& launch) {
    bool done = true;
    if (launch.halves & kSend) {
        accept(league, launch.args, launch.choices, launch.args.num_tokens, launch.args.choices);
        done = combine_send(league, launch.args);
    }
    return done && ((launch.halves & kReceive) == 0 || combine_receive(league, launch.args));
}

bool run_credit(League& league, const CombineLaunch& launch) {
    return launch.halves & kMeet ? meet_all(league, launch.args) : await_credit(league, launch.args);
}

// As league.cuh does: after a wait was given up, nothing runs any more.
template <class Launch>
void start(const void* params, bool (*body)(League&, const Launch&)) {
    Launch launch;
    std::memcpy(&launch, params, sizeof launch);
    launch.args.policy = {launch.args.policy.timeout_ns, kPauses, 10, never, launch.args.policy.costs};
    launch.args.peers.link = nullptr;  // a GPU's network: here all heaps are mapped
    if (launch.league.state->failed != 0) return;
    Pool pool(kNumTeams);
    pool.reserve_scratch(Label::bytes(launch.args.shape));
    League league(pool, kNumTeams);
    if (body(league, launch)) return;
    launch.league.state->failed = 1;
    std::atomic_ref<std::uint32_t>(*launch.league.failed).store(1, std::memory_order_release);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int twin_launch(const char* name,
                                                                  const void* params,
                                                                  std::size_t num_bytes,
                                                                  const unsigned*,
                                                                  const unsigned*,
                                                                  unsigned,
                                                                  void*) {
    constexpr int kInvalidValue = 1;
    if (std::strstr(name, "8dispatch") != nullptr && num_bytes == sizeof(DispatchLaunch))
        start<DispatchLaunch>(params, run);
    else if (std::strstr(name, "7combine") != nullptr && num_bytes == sizeof(CombineLaunch))
        start<CombineLaunch>(params, run);
    else if (std::strstr(name, "6credit") != nullptr && num_bytes == sizeof(CombineLaunch))
        start<CombineLaunch>(params, run_credit);
    else
        return kInvalidValue;
    return 0;
}
