// network.hpp: what kernels on a GPU know of the network behind their link. In device memory; the calls
// themselves are in team/gpu/network.cuh.
#pragma once

#include "symm/peers.hpp"

namespace deep_ll {

struct Network {
    int* queues;          // [num_queues] queue pairs, each to every peer; unused before NVSHMEM 3.5
    int num_queues;       // 1 to kMaxQueues
    std::uint32_t* sent;  // [ranks] what each peer was not told of yet: a bit a queue, or how many messages
    std::uint64_t mail;   // where in each heap its peers count what they send (team/signal.hpp)
};
constexpr int kMaxQueues = 32;

WORD_FN const Network& network_of(const PeerMap& peers) {
    return *global_memory(reinterpret_cast<const Network*>(peers.link));
}

}  // namespace deep_ll
