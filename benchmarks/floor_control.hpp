// What the floor's processes share beside the data: barriers, the command, the time stamps.
#pragma once
#include <pthread.h>
#include <time.h>

#include <algorithm>

#include "floor_work.hpp"

constexpr int kMaxRounds = 4096;
constexpr const char* kOps[] = {"dispatch", "combine", "combine_zero_copy", "pair"};
constexpr int kNumOps = 4;
constexpr const char* kStores[] = {"plain", "stream"};

struct Stamp {
    double begin, end;
};

struct Control {
    pthread_barrier_t ranks;     // before each operation
    pthread_barrier_t everyone;  // before and after each command
    int num_rounds;
    bool with[2];  // plain, streaming stores
};

struct Shared {
    Control* control = shared_array<Control>(1);
    Stamp* stamps;
    int num_ranks;

    explicit Shared(int ranks)
        : stamps(shared_array<Stamp>(static_cast<size_t>(ranks) * kMaxRounds * 2 * kNumOps)),
          num_ranks(ranks) {
        init(control->ranks, ranks);
        init(control->everyone, ranks + 1);
    }
    Stamp& stamp(int rank, int round, int stream, int op) const {
        return stamps[((static_cast<size_t>(rank) * kMaxRounds + round) * 2 + stream) * kNumOps + op];
    }

   private:
    static void init(pthread_barrier_t& barrier, int count) {
        pthread_barrierattr_t attributes;
        pthread_barrierattr_init(&attributes);
        pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&barrier, &attributes, static_cast<unsigned>(count));
    }
};

inline double now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <typename Operation>
void timed(const Shared& shared, Stamp& stamp, Operation operation) {
    pthread_barrier_wait(&shared.control->ranks);
    stamp.begin = now();
    operation();
    stamp.end = now();
}

// From the first rank's begin to the last rank's end.
inline double wall_ms(const Shared& shared, int round, int stream, int op) {
    double begin = 1e300, end = 0;
    for (int rank = 0; rank < shared.num_ranks; ++rank) {
        begin = std::min(begin, shared.stamp(rank, round, stream, op).begin);
        end = std::max(end, shared.stamp(rank, round, stream, op).end);
    }
    return (end - begin) * 1e3;
}
