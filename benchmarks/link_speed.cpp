// The library's link at the work of link_floor.cpp. LINK_WAIT=sleep: waits end in a sleep on the doorbell, as
// the library's do; else they only give the core away, as the floor's.
//
//   g++ -O3 -std=c++20 -I../csrc -isystem $UCX/include link_speed.cpp ../csrc/symm/*.cpp
//   ../csrc/symm/ucx/*.cpp
//       ../csrc/core/check.cpp -ldl -o link_speed
//   LINK_LIBRARY=$UCX/lib/libucp.so.0 ./link_speed RANKS ROWS BYTES ITERS
#include <algorithm>

#include "link_world.hpp"
#include "symm/doorbell.hpp"
#include "symm/ucx/ucx_link.hpp"

namespace {

constexpr int kLooks = 20;  // without anything, before a sleep

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

class Engine {
   public:
    Engine(const World& world, int rank)
        : world_(world),
          rank_(rank),
          link_({reinterpret_cast<std::uint64_t>(world.heap),
                 world.heap_bytes(),
                 {1, 2, 3},
                 rank,
                 world.options.ranks},
                {variable("LINK_LIBRARY"), "lo", world.options.ranks},
                0) {}

    std::string address() const { return link_.address(); }
    void connect(int peer, const std::string& address) { link_.connect(peer, address); }
    void send(int peer,
              std::uint64_t at,
              const std::uint8_t* from,
              int rows,
              std::uint64_t bytes,
              std::uint64_t word) {
        for (int row = 0; row < rows; ++row) link_.put(peer, at + row * bytes, from + row * bytes, bytes);
        static_cast<deep_ll::Link&>(link_).signal(peer, world_.word_at(rank_), word);
    }
    bool progress() { return link_.progress(); }

    template <class Ready>
    void wait(Ready ready, std::uint64_t word) {
        for (int idle = 0; !ready();) {
            idle = link_.progress() ? 0 : idle + 1;
            if (idle == 0) continue;
            if (idle < kLooks || !sleeps_) {
                sched_yield();
            } else {
                sleep_until(ready, word);
            }
        }
    }

   private:
    template <class Ready>
    void sleep_until(Ready ready, std::uint64_t word) {
        auto& bell = reinterpret_cast<deep_ll::HeapHeader*>(world_.heap)->doorbell;
        const std::uint64_t arrived = bell.arrived.load();
        std::uint64_t missing = 0;
        for (int peer = 0; peer < world_.options.ranks; ++peer) {
            missing += world_.remote(rank_, peer) && world_.word(peer).load() < word;
        }
        link_.rest();
        deep_ll::sleep(
            bell, arrived, std::max<std::uint64_t>(missing, 1), 1'000'000,
            [](void* context) { return !(*static_cast<Ready*>(context))(); }, &ready);
    }

    const World& world_;
    int rank_;
    bool sleeps_ = variable("LINK_WAIT") == "sleep";
    deep_ll::UcxLink link_;
};

}  // namespace

int main(int argc, char** argv) {
    return run_world<Engine>(argc, argv, "link");
}
