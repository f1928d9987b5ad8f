// ranks.cpp: ranks as threads of one process run the kernels, so that sanitizers see all of their memory.
//   ranks NUM_RANKS NUM_TEAMS NUM_ROUNDS SEED SCENARIO      scenarios: program.cpp, "doorbell", "lies"
// Ends with 0 if every byte was right, with 1 and a line that says what was not, or as the sanitizer wishes.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "doorbell.hpp"
#include "fail.hpp"
#include "lies.hpp"
#include "naps.hpp"
#include "rank.hpp"
#include "team/host/faults.hpp"

void fail(const char* format, ...) {
    va_list list;
    va_start(list, format);
    std::vfprintf(stderr, format, list);
    va_end(list);
    std::fputc('\n', stderr);
    std::_Exit(1);
}

namespace {

constexpr std::int64_t kTimeoutNs = 20'000'000'000, kShortlyNs = 2'000'000'000;

using Memory = std::unique_ptr<std::byte, decltype(&std::free)>;

Memory make_heap(std::uint64_t bytes) {
    Memory heap(static_cast<std::byte*>(std::aligned_alloc(deep_ll::kPage, bytes)), &std::free);
    std::memset(heap.get(), 0, bytes);
    return heap;
}

std::uint64_t heap_bytes_of(const std::vector<model::Round>& rounds) {
    std::uint64_t bytes = 0;
    for (const model::Round& round : rounds) {
        const model::Sizes& sizes = round.sizes;
        const auto format = static_cast<deep_ll::Format>(sizes.format);
        const deep_ll::Shape shape{sizes.ranks,  0,          sizes.experts, sizes.max_tokens,
                                   sizes.hidden, sizes.topk, format};
        bytes = std::max(bytes, deep_ll::Window::bytes_for(shape));
    }
    return bytes;
}

void start_desks(std::byte& heap, const deep_ll::Window& window, int num_ranks, std::uint32_t epoch) {
    const deep_ll::Signal word{static_cast<std::uint64_t>(epoch) << 32};
    for (int source = 0; source < num_ranks; ++source) {
        auto& desk = *reinterpret_cast<deep_ll::Desk*>(&heap + window.desk(source));
        desk.counts = desk.rows = desk.combined[0] = desk.combined[1] = desk.consumed = word;
        desk.granted = word;
    }
}

// How a rank leaves its work in the middle of a call.
struct Left {};

// Some rank leaves, after about a third of the rounds.
void plan_to_leave(const Scenario& scenario, int num_ranks, int num_rounds, std::uint64_t seed) {
    const auto some = static_cast<std::uint64_t>(num_ranks * num_rounds);
    deep_ll::set_fault(scenario.left, some / 3 + model::mix(seed) % (some / 3), [] { throw Left(); });
}

// Most steps follow at once, some a little later, a few much later: longer than peers spin.
void dawdle(std::uint64_t random) {
    const auto kind = random % 32;
    if (kind < 4) std::this_thread::sleep_for(std::chrono::microseconds(random / 32 % 300));
    if (kind == 4) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

void run_rank(const World& world, int number, std::uint64_t seed) {
    Rank rank(world, number);
    std::uint64_t drawn = 0;
    try {
        for (const Step& step : steps_of(world.program, number, seed)) {
            dawdle(model::mix(seed, static_cast<std::uint64_t>(number), ++drawn));
            rank.run(step);
        }
    } catch (const Left&) {
        leave();
        std::printf("rank %d is gone; ", number);
    }
}

void run_ranks(const Scenario& scenario, int num_ranks, int num_teams, int num_rounds, std::uint64_t seed) {
    // Odd seeds go across the end of the epochs.
    const std::uint32_t first_epoch = seed % 2 == 0 ? 0 : 0u - 12;
    World world{{}, make_program(scenario, num_rounds, seed), {}, 0, num_teams, first_epoch, kTimeoutNs};
    if (*scenario.left != 0) {
        plan_to_leave(scenario, num_ranks, num_rounds, seed);
        world.timeout_ns = kShortlyNs;
    }
    for (int i = 0; i < num_rounds; ++i)
        world.rounds.push_back(model::make_round(model::mix(seed, static_cast<std::uint64_t>(i)), num_ranks));
    world.heap_bytes = heap_bytes_of(world.rounds);
    std::vector<Memory> heaps;
    for (int rank = 0; rank < num_ranks; ++rank) {
        heaps.push_back(make_heap(world.heap_bytes));
        start_desks(*heaps.back(), deep_ll::Window::carve(world.heap_bytes, num_ranks), num_ranks,
                    first_epoch);
        world.heaps.push_back(reinterpret_cast<std::uint64_t>(heaps.back().get()));
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_ranks; ++rank) threads.emplace_back(run_rank, std::cref(world), rank, seed);
    for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 6) fail("usage: ranks NUM_RANKS NUM_TEAMS NUM_ROUNDS SEED SCENARIO");
    const std::string name = argv[5];
    const Scenario* scenario = find_scenario(name);
    if (run_lies(name, std::atoi(argv[1]), std::atoi(argv[3]), std::strtoull(argv[4], nullptr, 10))) return 0;
    if (name == "doorbell")
        run_doorbell();
    else if (scenario == nullptr)
        fail("there is no scenario %s", name.c_str());
    else
        run_ranks(*scenario, std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]),
                  std::strtoull(argv[4], nullptr, 10));
    const Naps seen = naps();
    std::printf("right; %llu sleeps, %llu timed out, %llu wakes\n",
                static_cast<unsigned long long>(seen.sleeps), static_cast<unsigned long long>(seen.timeouts),
                static_cast<unsigned long long>(seen.wakes));
    if (seen.lost != 0) fail("%llu sleepers were forgotten", static_cast<unsigned long long>(seen.lost));
    return 0;
}
