// link_world.hpp: rank processes that exchange rows over sockets, and how long that takes. What sends them is
// an Engine: link_floor.cpp has one of UCX alone, link_speed.cpp the library's.
//
// An Engine has: Engine(World&, int rank); address(); connect(peer, address); send(peer, at, from, rows,
// row_bytes, word), rows and then a word at word_at(rank); progress(); and wait(ready, word), which returns
// when ready() is true: all words are there.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

constexpr int kMaxRanks = 64, kMaxIters = 10'000;

struct Options {
    int ranks = 2, rows = 1, bytes = 7168, iters = 1000;
    bool ping_pong() const { return ranks == 2 && rows == 1; }
};

// What all processes see.
struct Board {
    std::atomic<int> arrived[3];
    char address[kMaxRanks][512];
    std::size_t address_bytes[kMaxRanks];
    double start_us[kMaxRanks][kMaxIters], end_us[kMaxRanks][kMaxIters];
};

inline double now_us() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

struct World {
    Options options;
    Board* board;
    std::uint8_t* heap;
    std::uint8_t* rows;

    static constexpr std::uint64_t kWords = 4096, kData = 8192;
    std::uint64_t block_bytes() const { return std::uint64_t(options.rows) * options.bytes; }
    std::uint64_t heap_bytes() const { return kData + options.ranks * block_bytes(); }
    std::uint64_t word_at(int rank) const { return kWords + 8 * rank; }
    std::uint64_t block_at(int rank) const { return kData + rank * block_bytes(); }
    std::atomic<std::uint64_t>& word(int rank) const {
        return *reinterpret_cast<std::atomic<std::uint64_t>*>(heap + word_at(rank));
    }
    // Two nodes: the first half of the ranks, and the second.
    bool remote(int a, int b) const { return a / (options.ranks / 2) != b / (options.ranks / 2); }
};

// Two ranks that share a core of two would be measured as two context switches.
inline void pin(int rank, int num_ranks) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (num_ranks > cores) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(rank, &set);
    sched_setaffinity(0, sizeof set, &set);
}

inline std::uint8_t* allocate(std::uint64_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    return static_cast<std::uint8_t*>(memory);
}

// One rank's part.
template <class Engine>
class Rank {
   public:
    Rank(const World& world, int rank) : world_(world), rank_(rank), engine_(world_, rank) {
        for (int peer = 1; peer < world.options.ranks; ++peer) {
            const int other = (rank + peer) % world.options.ranks;
            if (world.remote(rank, other)) peers_.push_back(other);
        }
        const std::string address = engine_.address();
        std::memcpy(world.board->address[rank], address.data(), address.size());
        world.board->address_bytes[rank] = address.size();
        meet();
        for (const int peer : peers_) {
            engine_.connect(peer, {world.board->address[peer], world.board->address_bytes[peer]});
        }
    }

    void run() {
        const Options& options = world_.options;
        const int warm = options.iters / 10 + 2;
        for (int i = -warm; i < options.iters; ++i) {
            if (!options.ping_pong()) meet();
            const double start = now_us();
            ++round_;
            if (options.ping_pong() && rank_ == 1) await();
            for (const int peer : peers_) {
                engine_.send(peer, world_.block_at(rank_), world_.rows, options.rows, options.bytes, round_);
            }
            if (!options.ping_pong() || rank_ == 0) await();
            if (i < 0) continue;
            world_.board->start_us[rank_][i] = start;
            world_.board->end_us[rank_][i] = now_us();
        }
        meet();
    }

   private:
    void await() {
        engine_.wait(
            [&] {
                for (const int peer : peers_) {
                    if (world_.word(peer).load(std::memory_order_acquire) < round_) return false;
                }
                return true;
            },
            round_);
    }
    void meet() {
        std::atomic<int>& arrived = world_.board->arrived[0];
        ++meetings_;
        arrived.fetch_add(1);
        while (arrived.load() < meetings_ * world_.options.ranks) {
            if (!engine_.progress()) sched_yield();
        }
    }

    World world_;
    int rank_;
    Engine engine_;
    std::vector<int> peers_;
    std::uint64_t round_ = 0;
    int meetings_ = 0;
};

inline void print_results(const World& world, const char* engine) {
    const Options& options = world.options;
    std::printf("{\"engine\": \"%s\", \"ranks\": %d, \"rows\": %d, \"bytes\": %d, \"us\": [", engine,
                options.ranks, options.rows, options.bytes);
    for (int i = 0; i < options.iters; ++i) {
        double start = world.board->start_us[0][i], end = world.board->end_us[0][i];
        for (int rank = 1; rank < options.ranks && !options.ping_pong(); ++rank) {
            start = std::min(start, world.board->start_us[rank][i]);
            end = std::max(end, world.board->end_us[rank][i]);
        }
        std::printf("%s%.2f", i ? ", " : "", options.ping_pong() ? (end - start) / 2 : end - start);
    }
    std::printf("]}\n");
}

// main(): RANKS ROWS BYTES ITERS. Prints microseconds of each exchange: the end of the last rank less the
// start of the first; of two ranks with one row, half of there and back.
template <class Engine>
int run_world(int argc, char** argv, const char* engine) {
    World world{};
    int* numbers[] = {&world.options.ranks, &world.options.rows, &world.options.bytes, &world.options.iters};
    for (int i = 1; i < argc && i <= 4; ++i) *numbers[i - 1] = std::atoi(argv[i]);
    world.board = reinterpret_cast<Board*>(allocate(sizeof(Board)));
    world.rows = allocate(world.block_bytes());
    const pid_t parent = getpid();
    std::vector<pid_t> children;
    for (int rank = 0; rank < world.options.ranks; ++rank) {
        const pid_t child = fork();
        children.push_back(child);
        if (child != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(3);
        pin(rank, world.options.ranks);
        world.heap = allocate(world.heap_bytes());
        Rank<Engine>(world, rank).run();
        _exit(0);
    }
    int failed = 0;
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        failed += status != 0;
    }
    if (failed == 0) print_results(world, engine);
    return failed;
}
