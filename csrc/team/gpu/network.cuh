// network.cuh: the calls of NVSHMEM, all of them and of its public interface only. It orders a message before
// the signal that it ends with, and what a fence of a queue pair covers before what is put into that queue
// later; nothing else.
//
//   from 3.5   rows go into queue pairs of this library's own. Telling of them: a fence and a signal a queue
//   before     each message is a put with a signal. Telling of them: how many there were
#pragma once

#include <nvshmem.h>
#include <nvshmemx.h>

#include "symm/network.hpp"
#include "team/gpu/memory.cuh"

// Real calls: inside of a kernel they would cost it registers.
#if !defined(DEEP_LL_CALL)
#define DEEP_LL_CALL static __device__ __noinline__
#endif

DEEP_LL_TIER_BEGIN

// Bytes for a peer, and what they add 1 to when they are there. Addresses are of this rank's own heap.
struct Letter {
    int peer;
    std::uint32_t sender;  // spreads the load over queues
    std::byte* to;
    const std::byte* from;
    std::uint64_t bytes;
    std::uint64_t* box;
};

#if NVSHMEM_VENDOR_MAJOR_VERSION > 3 || NVSHMEM_VENDOR_MINOR_VERSION >= 5

// All lanes of a warp.
DEEP_LL_CALL void hand_over(const Network& network, Letter letter) {
    const std::uint32_t queue = letter.sender % static_cast<std::uint32_t>(network.num_queues);
    nvshmemx_qp_char_put_nbi_warp(reinterpret_cast<char*>(letter.to),
                                  reinterpret_cast<const char*>(letter.from), letter.bytes, letter.peer,
                                  network.queues[queue]);
    __syncwarp();
    if (threadIdx.x % 32 == 0) or_release_gpu(network.sent + letter.peer, 1u << queue);
}

// One lane: `change` arrives in the box after all that was handed over for this peer.
DEEP_LL_CALL void tell_of_sent(const Network& network, int peer, std::uint64_t* box, std::uint64_t change) {
    std::uint32_t used = take_acquire_gpu(network.sent + peer);
    if (used == 0) used = 1;
    change -= static_cast<std::uint64_t>(__popc(used) - 1);
    for (; used != 0; used &= used - 1) {
        int* queue = network.queues + __ffs(static_cast<int>(used)) - 1;
        nvshmemx_qp_fence(peer, queue, 1);
        nvshmemx_qp_signal_op(box, change, NVSHMEM_SIGNAL_ADD, peer, *queue);
        change = 1;
    }
}

DEEP_LL_CALL void add_there(const Network& network, int peer, std::uint64_t* word, std::uint64_t change) {
    if (change != 0) nvshmemx_qp_signal_op(word, change, NVSHMEM_SIGNAL_ADD, peer, network.queues[0]);
}

#else

DEEP_LL_CALL void hand_over(const Network& network, Letter letter) {
    nvshmemx_putmem_signal_nbi_warp(letter.to, letter.from, letter.bytes, letter.box, 1, NVSHMEM_SIGNAL_ADD,
                                    letter.peer);
    __syncwarp();
    if (threadIdx.x % 32 == 0) add_release_gpu(network.sent + letter.peer, 1);
}

DEEP_LL_CALL void tell_of_sent(const Network& network, int peer, std::uint64_t* box, std::uint64_t change) {
    nvshmemx_signal_op(box, change - take_acquire_gpu(network.sent + peer), NVSHMEM_SIGNAL_ADD, peer);
}

DEEP_LL_CALL void add_there(const Network&, int peer, std::uint64_t* word, std::uint64_t change) {
    if (change != 0) nvshmemx_signal_op(word, change, NVSHMEM_SIGNAL_ADD, peer);
}

#endif

// What NVSHMEM's own waits end with: on some machines what a card has written is only visible after it.
DEEP_LL_CALL void look_at(std::uint64_t* word) {
    nvshmem_uint64_test(word, NVSHMEM_CMP_GE, 0);
}

DEEP_LL_TIER_END
