// ucp.cpp: finding UCX.
#include "symm/ucx/ucp.hpp"

#include <dlfcn.h>

namespace deep_ll {
namespace {

constexpr char kLibrary[] = "libucp.so.0";

void* open_library(const std::string& path) {
    const char* name = path.empty() ? kLibrary : path.c_str();
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw LinkError(std::string("UCX cannot be loaded: ") + dlerror());
    return library;
}

template <class Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw LinkError(std::string("this UCX has no ") + name + ": it is too old");
}

}  // namespace

Ucp::Ucp(const std::string& path) {
    void* library = open_library(path);
    find(library, "ucp_get_version", get_version);
    unsigned major, minor, patch;
    get_version(&major, &minor, &patch);
    version = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
    if (major != kUcpMajor || minor < kUcpMinor)
        throw LinkError("this is UCX " + version + ", deep_ll needs 1.15 or a later 1.x");
    find(library, "ucp_config_read", config_read);
    find(library, "ucp_config_modify", config_modify);
    find(library, "ucp_config_release", config_release);
    find(library, "ucp_init_version", init_version);
    find(library, "ucp_cleanup", cleanup);
    find(library, "ucp_worker_create", worker_create);
    find(library, "ucp_worker_destroy", worker_destroy);
    find(library, "ucp_worker_get_address", worker_get_address);
    find(library, "ucp_worker_release_address", worker_release_address);
    find(library, "ucp_worker_get_efd", worker_get_efd);
    find(library, "ucp_worker_progress", worker_progress);
    find(library, "ucp_worker_arm", worker_arm);
    find(library, "ucp_worker_set_am_recv_handler", worker_set_am_recv_handler);
    find(library, "ucp_ep_create", ep_create);
    find(library, "ucp_ep_flush_nbx", ep_flush_nbx);
    find(library, "ucp_ep_close_nbx", ep_close_nbx);
    find(library, "ucp_am_send_nbx", am_send_nbx);
    find(library, "ucp_request_check_status", request_check_status);
    find(library, "ucp_request_free", request_free);
    find(library, "ucs_status_string", status_string);
}

void Ucp::check(ucs_status_t status, const char* what) const {
    if (status == UCS_OK) return;
    throw LinkError(std::string(what) + ": " + status_string(status) + " (UCX " + version + ")");
}

}  // namespace deep_ll
