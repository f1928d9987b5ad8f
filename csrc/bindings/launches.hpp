// launches.hpp: one rank's end of the ep family on a GPU. It only fills the parameters of launches; Python
// hands them to the driver. Addresses are of device memory, but for the verdict, which host and device share.
#pragma once

#include <string>

#include "bindings/exchange.hpp"
#include "ep/launch.hpp"

namespace deep_ll {

// Where a buffer's own words are on the device.
struct DeviceState {
    Progress progress;
    LeagueState league;
};
// What kernels tell the host.
struct HostState {
    Verdict verdict;
    std::uint32_t failed;
};

// What never changes while a buffer lives.
struct DeviceHeap {
    std::uint64_t bases;  // device table of all heaps' addresses
    int rank;
    int num_ranks;
    std::uint64_t num_bytes;
    std::uint64_t mask;     // on the device; 0: no rank is ever left out
    std::uint64_t network;  // a Network, on the device; 0: all peers are mapped
    std::uint64_t linked;   // [num_ranks] bytes, on the device: 1: behind it
};

class Launches {
   public:
    // `device_state`: zeroed memory of sizeof(DeviceState); `host_state`: of sizeof(HostState), as kernels
    // see it; `host_view`: the same memory as this process sees it.
    Launches(const DeviceHeap& heap,
             std::uint64_t device_state,
             std::uint64_t host_state,
             std::uint64_t host_view,
             std::int64_t timeout_ns);

    DispatchLaunch dispatch(const Shape&,
                            std::uint64_t ledger,
                            const Batch&,
                            bool columns,
                            std::uint64_t stats,
                            std::uint32_t halves) const;
    CombineLaunch combine(const Shape&,
                          std::uint64_t ledger,
                          const Answer&,
                          std::uint64_t x,
                          const Sum&,
                          std::uint32_t halves) const;

    // Shared memory of a block of `num_warps` warps.
    static std::uint32_t shared_bytes(const Shape& shape, int num_warps);

    HostState& host() const { return *view_; }
    std::int64_t timeout_ns() const { return timeout_ns_; }
    void set_timeout_ns(std::int64_t timeout_ns) { timeout_ns_ = timeout_ns; }

   private:
    void fill(Common& args, LeagueArgs& league, const Shape& shape, std::uint64_t ledger) const;

    DeviceHeap heap_;
    Window window_;
    DeviceState* device_;
    HostState* host_;
    HostState* view_;
    std::int64_t timeout_ns_;
};

}  // namespace deep_ll
