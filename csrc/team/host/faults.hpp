// faults.hpp: where tests let a rank die or stop: DEEP_LL_FAULT. Without that each point costs a look at a
// null pointer.
//   PHASE       before a phase (phases.hpp has their names)
//   PHASE.peer  in it, before each peer that is told something
//   PHASE.row   in it, before each item of a team's share
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "core/target.hpp"

namespace deep_ll {

struct FaultPlan {
    std::string point;
    std::atomic<std::uint64_t> left;  // visits of the point until then
    std::function<void()> act;
};

extern FaultPlan* fault_plan;

// Replaces the plan; an empty `point`: none. Not while calls are under way.
void set_fault(const std::string& point, std::uint64_t visit, std::function<void()> act);
// The process sends itself a signal.
void set_fault_signal(const std::string& point, int signal, std::uint64_t visit);

// Counts a visit. `phase`: that this thread begins; null: within the last one.
void reach_fault_point(const char* phase, const char* within);

WORD_FN void fault_point(const char* within) {
    if (fault_plan != nullptr) [[unlikely]]
        reach_fault_point(nullptr, within);
}
WORD_FN void fault_point_of(const char* phase) {
    if (fault_plan != nullptr) [[unlikely]]
        reach_fault_point(phase, "");
}

}  // namespace deep_ll
