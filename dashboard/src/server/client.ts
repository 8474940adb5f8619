// The client that other programs use too, from this checkout: the one file of the page that knows where it lies.
export * from "../../../client/src/reader/client.js";
