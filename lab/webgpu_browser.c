/* Hands Chromium Mesa's lavapipe in the place of SwiftShader, its own software driver, which has no float16.
 *
 * Chromium takes a driver that runs on the CPU only if its device says that it is SwiftShader, and loads that from
 * libvk_swiftshader.so beside itself. This library, under that name, is lavapipe with SwiftShader's numbers.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

typedef void (*Function)(void);
typedef Function (*Lookup)(void *instance, const char *name);

static void *driver;
static void (*properties)(void *device, uint32_t *result);
static void (*properties2)(void *device, void *result);

/* VkPhysicalDeviceProperties begins with apiVersion, driverVersion, vendorID, deviceID and deviceType. */
static void rename_device(uint32_t *result) {
    result[2] = 0x1AE0;
    result[3] = 0xC0DE;
}

static void renamed_properties(void *device, uint32_t *result) {
    properties(device, result);
    rename_device(result);
}

static void renamed_properties2(void *device, void *result) {
    properties2(device, result);
    rename_device((uint32_t *)((char *)result + 16)); /* behind sType and pNext */
}

static void load(void) {
    if (!driver) driver = dlopen(LAVAPIPE, RTLD_NOW | RTLD_LOCAL);
}

static Function looked_up(const char *lookup, void *instance, const char *name) {
    load();
    Function known = driver ? ((Lookup)dlsym(driver, lookup))(instance, name) : 0;
    if (known && !strcmp(name, "vkGetPhysicalDeviceProperties")) {
        properties = (void (*)(void *, uint32_t *))known;
        return (Function)renamed_properties;
    }
    if (known && !strncmp(name, "vkGetPhysicalDeviceProperties2", 30)) {
        properties2 = (void (*)(void *, void *))known;
        return (Function)renamed_properties2;
    }
    return known;
}

Function vkGetInstanceProcAddr(void *instance, const char *name) {
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (Function)vkGetInstanceProcAddr;
    return looked_up("vk_icdGetInstanceProcAddr", instance, name);
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    return looked_up("vk_icdGetInstanceProcAddr", instance, name);
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
    return looked_up("vk_icdGetPhysicalDeviceProcAddr", instance, name);
}

int vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
    load();
    return ((int (*)(uint32_t *))dlsym(driver, "vk_icdNegotiateLoaderICDInterfaceVersion"))(version);
}
