// link_turns.hpp: the floor of one configuration of the benchmark: rows from each rank to each as its routing
// says, between nodes by an Engine (link_world.hpp), within a node by memcpy. It runs when it is told to, so
// that it takes turns with what it is compared with.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "link_job.hpp"

constexpr int kMaxTurns = 4096;
constexpr const char* kTurnOps[] = {"dispatch", "combine", "pair"};
constexpr int kNumTurnOps = 3;

// What all processes see, beside the board.
struct Turns {
    pthread_barrier_t everyone;  // before and after each command
    int iters;
    double begin_us[kMaxRanks][kMaxTurns][kNumTurnOps], end_us[kMaxRanks][kMaxTurns][kNumTurnOps];

    double wall_ms(int ranks, int iter, int op) const {
        double begin = 1e300, end = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            begin = std::min(begin, begin_us[rank][iter][op]);
            end = std::max(end, end_us[rank][iter][op]);
        }
        return (end - begin) / 1e3;
    }
};

template <class Engine>
class JobRank {
   public:
    JobRank(
        const Job& job, const World& world, const std::vector<std::uint8_t*>& heaps, Turns* turns, int rank)
        : job_(job), world_(world), heaps_(heaps), turns_(turns), rank_(rank), engine_(world_, rank) {
        const std::string address = engine_.address();
        std::memcpy(world.board->address[rank], address.data(), address.size());
        world.board->address_bytes[rank] = address.size();
        meet();
        for (int peer = 0; peer < job.ranks; ++peer) {
            if (job.remote(rank, peer))
                engine_.connect(peer, {world.board->address[peer], world.board->address_bytes[peer]});
        }
    }

    void serve() {
        for (;;) {
            pthread_barrier_wait(&turns_->everyone);
            for (int i = 0; i < turns_->iters; ++i) {
                timed(i, 0, [&] { exchange(0); });
                timed(i, 1, [&] { exchange(1); });
                timed(i, 2, [&] { exchange(0), exchange(1); });
            }
            meet();
            pthread_barrier_wait(&turns_->everyone);
        }
    }

   private:
    template <class Operation>
    void timed(int iter, int op, Operation operation) {
        meet();
        const double begin = now_us();
        operation();
        turns_->begin_us[rank_][iter][op] = begin;
        turns_->end_us[rank_][iter][op] = now_us();
    }

    void exchange(int half) {
        ++round_;
        // First what takes longer.
        for (const bool remote : {true, false}) {
            for (int i = 0; i < job_.ranks; ++i) {
                const int peer = (rank_ + i) % job_.ranks;
                if (job_.remote(rank_, peer) == remote) send(half, peer);
            }
        }
        engine_.wait([&] { return has_come(half); }, round_);
    }

    void send(int half, int peer) {
        const int rows = job_.rows(half, rank_, peer);
        if (rows == 0) return;
        const std::uint64_t at = job_.places[half][rank_ * job_.ranks + peer];
        if (job_.remote(rank_, peer)) {
            engine_.send(peer, at, world_.rows, rows, job_.bytes[half], round_);
            return;
        }
        std::memcpy(heaps_[peer] + at, world_.rows, std::uint64_t(rows) * job_.bytes[half]);
        World theirs = world_;
        theirs.heap = heaps_[peer];
        theirs.word(rank_).store(round_, std::memory_order_release);
    }

    bool has_come(int half) const {
        for (int peer = 0; peer < job_.ranks; ++peer) {
            if (job_.rows(half, peer, rank_) == 0) continue;
            if (world_.word(peer).load(std::memory_order_acquire) < round_) return false;
        }
        return true;
    }

    // Not a barrier that sleeps: what this rank sent may still need it to leave.
    void meet() {
        std::atomic<int>& arrived = world_.board->arrived[0];
        ++meetings_;
        arrived.fetch_add(1);
        engine_.wait([&] { return arrived.load() >= meetings_ * job_.ranks; }, round_);
    }

    const Job& job_;
    World world_;
    const std::vector<std::uint8_t*>& heaps_;
    Turns* turns_;
    int rank_;
    Engine engine_;
    std::uint64_t round_ = 0;
    int meetings_ = 0;
};

inline void print_turns(const Job& job, const Turns& turns) {
    for (int op = 0; op < kNumTurnOps; ++op) {
        std::printf("%s\"%s\": {\"ucx\": [", op ? ", " : "{", kTurnOps[op]);
        for (int i = 0; i < turns.iters; ++i)
            std::printf("%s%.5f", i ? ", " : "", turns.wall_ms(job.ranks, i, op));
        std::printf("]}");
    }
    std::printf("}\n");
    std::fflush(stdout);
}

inline void on_rank_end(int) {
    constexpr char kMessage[] = "link floor: a rank process died\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
    _exit(3);
}

template <class Engine>
void start_ranks(const Job& job, Turns* turns) {
    World world{};
    world.options.ranks = job.ranks;
    world.board = reinterpret_cast<Board*>(allocate(sizeof(Board)));
    world.rows = allocate(job.most_bytes + 1);
    std::vector<std::uint8_t*> heaps;
    for (int rank = 0; rank < job.ranks; ++rank) heaps.push_back(allocate(job.heap_bytes));
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&turns->everyone, &attributes, job.ranks + 1);
    signal(SIGCHLD, on_rank_end);
    const pid_t parent = getpid();
    for (int rank = 0; rank < job.ranks; ++rank) {
        if (fork() != 0) continue;
        signal(SIGCHLD, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(3);
        world.heap = heaps[rank];
        JobRank<Engine>(job, world, heaps, turns, rank).serve();
    }
}

// Reads a line: RANKS RANKS_PER_NODE, the bytes of a dispatched row and of one that comes back, and the rows
// dispatched from each rank to each. Then lines `run N`, each answered by milliseconds as JSON.
template <class Engine>
int run_job() {
    static Job job;
    std::string line;
    std::getline(std::cin, line);
    std::istringstream words(line);
    if (!job.read(words)) return std::fprintf(stderr, "link floor: no job: %s\n", line.c_str()), 2;
    auto* turns = reinterpret_cast<Turns*>(allocate(sizeof(Turns)));
    start_ranks<Engine>(job, turns);
    std::printf("{\"ready\": true}\n");
    std::fflush(stdout);
    while (std::getline(std::cin, line)) {
        if (std::sscanf(line.c_str(), "run %d", &turns->iters) != 1) return 2;
        if (turns->iters < 1 || turns->iters > kMaxTurns) return 2;
        pthread_barrier_wait(&turns->everyone);
        pthread_barrier_wait(&turns->everyone);
        print_turns(job, *turns);
    }
    return 0;
}
