// faults.cpp: see faults.hpp.
#include "team/host/faults.hpp"

#include <signal.h>

#include <memory>
#include <utility>

namespace deep_ll {

FaultPlan* fault_plan = nullptr;

void set_fault(const std::string& point, std::uint64_t visit, std::function<void()> act) {
    static std::unique_ptr<FaultPlan> owner;
    fault_plan = nullptr;
    if (point.empty()) return;
    owner.reset(new FaultPlan{point, {visit}, std::move(act)});
    fault_plan = owner.get();
}

void set_fault_signal(const std::string& point, int signal, std::uint64_t visit) {
    set_fault(point, visit, [signal] { raise(signal); });
}

void reach_fault_point(const char* phase, const char* within) {
    thread_local const char* current = "";
    if (phase != nullptr) current = phase;
    const std::string here = *within == 0 ? current : std::string(current) + "." + within;
    if (here == fault_plan->point && fault_plan->left.fetch_sub(1) == 1) fault_plan->act();
}

}  // namespace deep_ll
