// pool.cpp: the threads behind a league. A single team runs on the caller's thread.
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "core/layout.hpp"
#include "team/host/league.hpp"

namespace deep_ll {

struct Pool::Impl {
    std::mutex mutex;
    std::condition_variable start, finish;
    std::uint64_t generation = 0;
    int running = 0;
    int num_teams = 0;  // of this generation
    bool stopping = false;
    PhaseFn phase = nullptr;
    void* context = nullptr;
    std::vector<HostTeamState> teams;
    std::vector<std::thread> threads;

    HostTeamState team(std::size_t index, int count) const {
        HostTeamState state = teams[index];
        state.count = count;
        return state;
    }

    void work(std::size_t index) {
        std::uint64_t seen = 0;
        for (;;) {
            std::unique_lock lock(mutex);
            start.wait(lock, [&] { return stopping || generation != seen; });
            if (stopping) return;
            seen = generation;
            if (static_cast<int>(index) >= num_teams) continue;
            lock.unlock();
            phase(context, team(index, num_teams));
            lock.lock();
            if (--running == 0) finish.notify_one();
        }
    }
};

Pool::Pool(int num_teams) : impl_(std::make_unique<Impl>()) {
    for (int i = 0; i < num_teams; ++i) impl_->teams.push_back({i, num_teams, nullptr, 0});
    for (std::size_t i = 1; i < impl_->teams.size(); ++i)
        impl_->threads.emplace_back([this, i] { impl_->work(i); });
}

Pool::~Pool() {
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->stopping = true;
    }
    impl_->start.notify_all();
    for (auto& thread : impl_->threads) thread.join();
    for (auto& team : impl_->teams) std::free(team.scratch);
}

int Pool::num_teams() const {
    return static_cast<int>(impl_->teams.size());
}

void Pool::run(int num_teams, PhaseFn phase, void* context) {
    if (num_teams == 1) return phase(context, impl_->team(0, 1));
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->phase = phase;
        impl_->context = context;
        impl_->num_teams = num_teams;
        impl_->running = num_teams - 1;
        ++impl_->generation;
    }
    impl_->start.notify_all();
    phase(context, impl_->team(0, num_teams));
    std::unique_lock lock(impl_->mutex);
    impl_->finish.wait(lock, [&] { return impl_->running == 0; });
}

void Pool::reserve_scratch(std::uint64_t bytes) {
    const std::uint64_t rounded = round_up(bytes, kLine);
    for (auto& team : impl_->teams) {
        if (team.scratch_bytes >= rounded) continue;
        std::free(team.scratch);
        team.scratch = static_cast<std::byte*>(std::aligned_alloc(kLine, rounded));
        if (team.scratch == nullptr) throw std::bad_alloc();
        team.scratch_bytes = rounded;
    }
}

}  // namespace deep_ll
