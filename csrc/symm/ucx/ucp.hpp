// ucp.hpp: the functions of UCX that are used, from a library that is found at run time: a cluster's own UCX
// knows its network, the one of a Python package knows TCP.
#pragma once

#include <ucp/api/ucp.h>

#include <stdexcept>
#include <string>

namespace deep_ll {

class LinkError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What this is written for; later ones understand it.
constexpr unsigned kUcpMajor = 1;
constexpr unsigned kUcpMinor = 15;

struct Ucp {
    // A path, or "" for the libucp.so.0 that this process has loaded or the system has. Throws LinkError. It
    // stays loaded: UCX has threads.
    explicit Ucp(const std::string& path);

    // Throws LinkError unless a call was successful.
    void check(ucs_status_t status, const char* what) const;

    std::string version;

    decltype(&::ucp_get_version) get_version;
    decltype(&::ucp_config_read) config_read;
    decltype(&::ucp_config_modify) config_modify;
    decltype(&::ucp_config_release) config_release;
    decltype(&::ucp_init_version) init_version;
    decltype(&::ucp_cleanup) cleanup;
    decltype(&::ucp_worker_create) worker_create;
    decltype(&::ucp_worker_destroy) worker_destroy;
    decltype(&::ucp_worker_get_address) worker_get_address;
    decltype(&::ucp_worker_release_address) worker_release_address;
    decltype(&::ucp_worker_get_efd) worker_get_efd;
    decltype(&::ucp_worker_progress) worker_progress;
    decltype(&::ucp_worker_arm) worker_arm;
    decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
    decltype(&::ucp_ep_create) ep_create;
    decltype(&::ucp_ep_flush_nbx) ep_flush_nbx;
    decltype(&::ucp_ep_close_nbx) ep_close_nbx;
    decltype(&::ucp_am_send_nbx) am_send_nbx;
    decltype(&::ucp_request_check_status) request_check_status;
    decltype(&::ucp_request_free) request_free;
    decltype(&::ucs_status_string) status_string;
};

}  // namespace deep_ll
