// The part of NVSHMEM's public device interface that deep_ll calls, declared as NVSHMEM does. The simulated
// GPUs carry the calls out (ptx/engine/network_ops.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

#define NVSHMEM_VENDOR_MAJOR_VERSION 3
#if !defined(NVSHMEM_VENDOR_MINOR_VERSION)
#error "say which: 4 has no queue pairs, 5 and later have"
#endif

enum { NVSHMEM_SIGNAL_SET = 9, NVSHMEM_SIGNAL_ADD = 10 };
enum { NVSHMEM_CMP_EQ = 0, NVSHMEM_CMP_NE, NVSHMEM_CMP_GT, NVSHMEM_CMP_LE, NVSHMEM_CMP_LT, NVSHMEM_CMP_GE };

extern "C" {
__device__ int nvshmem_uint64_test(uint64_t* word, int comparison, uint64_t value);
__device__ void nvshmemx_signal_op(uint64_t* word, uint64_t value, int operation, int peer);
__device__ void nvshmemx_putmem_signal_nbi_warp(
    void* to, const void* from, size_t bytes, uint64_t* word, uint64_t value, int operation, int peer);
#if NVSHMEM_VENDOR_MINOR_VERSION >= 5
using nvshmemx_qp_handle_t = int;
__device__ void nvshmemx_qp_char_put_nbi_warp(
    char* to, const char* from, size_t bytes, int peer, nvshmemx_qp_handle_t queue);
__device__ void nvshmemx_qp_signal_op(
    uint64_t* word, uint64_t value, int operation, int peer, nvshmemx_qp_handle_t queue);
__device__ void nvshmemx_qp_fence(int peer, nvshmemx_qp_handle_t* queues, int num_queues);
#endif
}
